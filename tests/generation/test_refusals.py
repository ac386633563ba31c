"""Errors that are raised again."""

import pytest

from dflash import errors
from dflash.generation.messages.fields import FieldError
from dflash.generation.refusals import anew

CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.DFlashError)]


def attributes(error):
    return type(error), str(error), error.args, vars(error)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_that_is_raised_again_still_names_its_file(kind):
    error = kind("there is no such file")
    error.path = "draft.gguf"
    assert str(anew(error)) == "draft.gguf: there is no such file"
    assert attributes(anew(error)) == attributes(error)


def test_attributes_of_errors_stay():
    try:
        raise errors.ContextOverflow("too long", n_tokens=9, context=8)
    except errors.ContextOverflow as error:
        assert attributes(anew(error)) == attributes(error)
        assert anew(error).__traceback__ is None
    assert attributes(anew(FieldError("top_p", "must be at most 1"))) == attributes(FieldError("top_p", "must be at most 1"))
