from typing import final

__all__ = ["Link"]

@final
class Link:
    """A link between two ends; it is told, and answers, in JSON (`headrace_lab.link.process`).

    Raises `ValueError` for what cannot be, and `RuntimeError` for a call that is not possible in this state.
    """

    def __new__(cls, config_json: str) -> Link: ...
    def start(self) -> tuple[str, int] | None: ...
    def command(self, command_json: str) -> str: ...
    def stop(self) -> str: ...
