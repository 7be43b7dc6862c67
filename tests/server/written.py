"""What a test's own process writes to stderr."""

import pytest


class Written:
    """What was written to stderr since the test began."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys, self.text = capsys, ""

    def getvalue(self) -> str:
        self.text += self.capsys.readouterr().err
        return self.text
