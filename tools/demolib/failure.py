# SPDX-License-Identifier: MIT
"""The two ways in which the demo ends early; both unwind through every clean-up."""


class Failure(Exception):
    """Something is missing or went wrong; the text says what to do."""


class Interrupted(BaseException):
    """A signal asked for the end. Not an Exception: nothing on the way may swallow it."""

    def __init__(self, number):
        super().__init__(number)
        self.number = number
