// One look for each proposer everywhere: a colour, a dash for lines, an underline for tokens.

const LOOKS = 6;
const FIRST = ["ngram", "suffix", "prediction"];
const places = new Map(FIRST.map((name, place) => [name, place]));

/** 0 to 5; names that come later share looks when there are more than six. */
export function place(proposer) {
  if (!places.has(proposer)) places.set(proposer, places.size);
  return places.get(proposer) % LOOKS;
}

export const lineClass = (proposer) => `p${place(proposer)} d${place(proposer)}`;
export const tokenClass = (proposer) => `p${place(proposer)} u${place(proposer)}`;
