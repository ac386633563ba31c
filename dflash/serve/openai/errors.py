"""OpenAI's error responses."""

from collections.abc import Mapping

from dflash.json_types import JsonMapping
from dflash.serve.http_errors import Problem


class OpenAIErrors:
    """Error responses that are the same in all of OpenAI's APIs."""

    prompt_field = "messages"

    def problem(self, problem: Problem) -> tuple[int, JsonMapping, Mapping[str, str]]:
        """Return the status, OpenAI's error object and the headers of a refusal.

        A prompt that is too long is refused in OpenAI's words, by which clients know that they have to shorten it.
        """
        body, overflow = problem.body(), problem.overflow
        if overflow is not None:
            body["error"]["message"] = (
                f"This model's maximum context length is {overflow.context} tokens. However, you requested "
                f"{overflow.n_tokens} tokens in the {self.prompt_field}, and the completion needs at least 1. "
                f"Please reduce the length of the {self.prompt_field}."
            )
        return problem.status, body, problem.headers
