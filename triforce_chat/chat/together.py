"""Several questions at once, none of which sees another: about the same documents, or each about its own."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from triforce_chat.chat.events import ChatEvent, Comparison, Tally
from triforce_chat.chat.session import ChatSession
from triforce_chat.engine.engine import Request
from triforce_chat.engine.exactness import judge
from triforce_chat.engine.protocol import EngineProtocol
from triforce_chat.engine.together import answer_together
from triforce_chat.errors import DoesNotFit, TriforceError
from triforce_chat.models.failures import convert_out_of_memory

SessionQuestion = tuple[ChatSession, str]  # a conversation and a question in it
# Number of the question, or None while what they share is read; no event once its answer has ended.
Item = tuple[int | None, ChatEvent | TriforceError | None]
Asking = Generator[Item, None, None]


def ask_all(
    asked: Sequence[SessionQuestion], width: int, sources: bool = True, plain: bool = False
) -> Asking:
    """Answer questions with one engine, at most ``width`` at a time; nothing is recorded.

    An error of one answer is passed on before its end, and the others go on. ``plain``: without speculation.
    """
    requests, numbers = [], []
    for number, (session, question) in enumerate(asked):
        try:
            requests.append(session.request(session.question_ids(question)))
            numbers.append(number)
        except DoesNotFit as error:
            yield from ((number, error), (number, None))
    of_request = dict(zip(map(id, requests), numbers, strict=True))

    def answer(engine: EngineProtocol, request: Request) -> Generator[ChatEvent, None, None]:
        session, question = asked[of_request[id(request)]]
        with convert_out_of_memory():
            yield from session.answering(question, request, Tally(), sources, engine, plain)

    with convert_out_of_memory():
        for at, made in answer_together(asked[0][0].engine, requests, answer, width):
            yield None if at is None else numbers[at], made


def compared(session: ChatSession, question: str, fast: Tally, plain: Tally) -> Comparison:
    """Two whole answers to a question, with and without speculation."""
    request = session.request(session.question_ids(question))
    with convert_out_of_memory():
        verdict = judge(session.engine, request, fast.token_ids, plain.token_ids)
    return Comparison(fast, plain, verdict.identical, verdict.ties, verdict.mismatches)
