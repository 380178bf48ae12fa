// The gateway's HTTP API: the key, errors in words, and streams of events.

const STORED_KEY = "outrider.key";

/** What the gateway refused, in its own words; `status` 0 where it could not be reached. */
export class ApiFailure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The API key lives in this tab's session storage and nowhere else. */
export const key = {
  get: () => sessionStorage.getItem(STORED_KEY) ?? "",
  set: (value) => sessionStorage.setItem(STORED_KEY, value),
  forget: () => sessionStorage.removeItem(STORED_KEY),
};

/** Heard where the gateway wants a key, or another one. */
export const refusals = new EventTarget();

/** The response to a request; `path` is relative to the page. Throws ApiFailure. */
export async function request(path, { body, signal } = {}) {
  const headers = {};
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers, signal, credentials: "omit", cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiFailure(0, "the gateway cannot be reached");
  }
  if (response.ok) return response;
  const failure = new ApiFailure(response.status, await reason(response));
  if (response.status === 401) refusals.dispatchEvent(new Event("refused"));
  throw failure;
}

/** The JSON that `path` answers with. Throws ApiFailure. */
export async function json(path, options) {
  return (await request(path, options)).json();
}

/** The objects of a stream of server-sent events, to its end. Throws ApiFailure. */
export async function* events(path, options) {
  const response = await request(path, options);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      const parts = text.split("\n\n");
      text = parts.pop();
      for (const part of parts) {
        const data = part.replace(/^data: /, "");
        if (data !== "[DONE]") yield parsed(data);
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiFailure) throw error;
    throw new ApiFailure(0, "the connection to the gateway was lost");
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function parsed(data) {
  const object = JSON.parse(data);
  if (object.error) throw new ApiFailure(object.error.code, object.error.message);
  return object;
}

async function reason(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.slice(0, 200) || `status ${response.status}`;
  }
}
