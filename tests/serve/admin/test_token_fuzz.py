"""Random bodies of the token endpoints: a result, or an error that names what is wrong."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.errors import RequestError
from dflash.serve.admin.tokens import apply_template, detokenize, tokenize
from dflash.serve.limits import Limits

NAMES = "content prompt messages tokens tools role type text function name arguments tool_calls with_pieces parse_special"
SCALARS = st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats(allow_nan=False) | st.text(max_size=20)
JSON = st.recursive(
    SCALARS | st.sampled_from(["user", "assistant", "system", "tool", "text", "function"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(NAMES.split()) | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("name", ["tokenize", "detokenize", "apply_template"])
def test_random_bodies_end_in_a_result_or_a_refusal(lm, name):
    compute = {
        "tokenize": partial(tokenize, tokenizer=lm.tokenizer, template=lm.template, limits=Limits(512)),
        "detokenize": partial(detokenize, tokenizer=lm.tokenizer),
        "apply_template": partial(apply_template, template=lm.template),
    }[name]
    outcomes = set()

    @settings(max_examples=150, derandomize=True, database=None)
    @given(st.dictionaries(st.sampled_from(NAMES.split()), JSON, max_size=4) | JSON)
    def check(body):
        try:
            outcomes.add(type(compute(body)))
        except RequestError as error:
            outcomes.add(RequestError)
            assert str(error)

    check()
    assert RequestError in outcomes
