"""A decoder whose children are actors: the tokens of inline children, also with a draft."""

from __future__ import annotations

import pytest

from hetero import HeterogeneousExecutor
from hetero.decode import Decoder
from tests.models.decoder import SMALL, Form, build, prompt

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_ray"), pytest.mark.timeout(180)]


@pytest.mark.parametrize("form", ["plain", "contrib"])
def test_a_decoder_over_actors_has_the_tokens_of_inline_children(form: Form) -> None:
    model, ids = build(SMALL, form), prompt()[0]
    with HeterogeneousExecutor(model, ["cpu"], children="inline") as ex:
        draft = Decoder(ex)
        want = list(draft.generate(ids, max_new_tokens=12))
        providers = [("sim:0", {"except_ops": ["Sigmoid", "Gather"]}), "cpu"]
        with HeterogeneousExecutor(model, providers) as remote:
            decoder = Decoder(remote)
            assert list(decoder.generate(ids, max_new_tokens=12)) == want
            assert list(decoder.generate(ids, max_new_tokens=12, draft=draft)) == want
