"""Tokenize and Detokenize."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from speculation.v1 import verifier_pb2 as pb

from tests.verifier_service.serving import (
    answering,
    encode,
    serving,
)


async def test_tokenize_and_detokenize_agree(socket_dir: Path) -> None:
    async with serving(answering(), socket_dir) as client:
        tokens = await client.stub.Tokenize(
            pb.TokenizeRequest(text="the cat 🙂", return_token_strings=True)
        )
        back = await client.stub.Detokenize(pb.DetokenizeRequest(token_ids=tokens.token_ids))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await client.stub.Detokenize(pb.DetokenizeRequest(token_ids=[3, 400]))
    assert list(tokens.token_ids) == encode("the cat 🙂")
    assert len(tokens.token_strings) == len(tokens.token_ids)
    assert tokens.max_model_len == 512
    assert back.text == "the cat 🙂"
    assert caught.value.details() == "token_ids[1] 400 is not a token id: ids are from 0 to 399"
