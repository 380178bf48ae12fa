"""A request's prediction as token ids.

Knows its two forms and its limits; how an answer follows the ids is prediction.py's.
"""

from __future__ import annotations

from speculation.v1 import verifier_pb2

from verifier_service.field_checks import check_token_ids
from verifier_service.prediction import PredictedIds
from verifier_service.request_error import CONTEXT_LENGTH_EXCEEDED, RequestError
from verifier_service.text import Text

_FIELD = "prediction"


def read_prediction(
    prediction: verifier_pb2.Prediction, text: Text, vocab_size: int, max_model_len: int
) -> PredictedIds | None:
    """What the answer is compared with; None where nothing is predicted.

    Tokenizes, so it belongs on the tokenizer's thread. Raises RequestError where an id is outside
    the vocabulary, or where the prediction is longer than the context.
    """
    if prediction.WhichOneof("content") == "token_ids":
        ids = list(prediction.token_ids.ids)
        check_token_ids(ids, vocab_size, _FIELD)
    else:
        text.check_size(prediction.text, _FIELD, max_model_len)
        # The answer begins in the middle of a text: nothing stands in front of it.
        ids = text.encode(prediction.text, add_special_tokens=False)
    if len(ids) > max_model_len:
        raise RequestError(
            f"{_FIELD} has {len(ids)} tokens: more than the maximum context length of "
            f"{max_model_len} tokens can hold",
            field=_FIELD,
            code=CONTEXT_LENGTH_EXCEEDED,
        )
    return PredictedIds(ids) if ids else None
