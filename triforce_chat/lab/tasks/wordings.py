"""Wordings of questions and replies that do not depend on the fact."""

PAGE_QUESTIONS = (
    "On which page does the document speak of {about}?",
    "On which page is {about} mentioned?",
    "Which page tells about {about}?",
    "On what page do I find something about {about}?",
    "Where in the document is {about} mentioned? Give the page.",
    "Name the page on which {about} comes up.",
)
# All replies begin with the same words, so greedy decoding chooses between an answer and a refusal at one token.
# With several wordings, the refusals would split their probability and lose to a less likely answer.
REPLY = "The answer is {answer}."
PAGE_REPLY = "The answer is page {page}."
TWO_STEP_REPLY = "The answer lies with {bridge}: it is {answer}."
ABSENT_REPLY = "The answer is not in the document."
OPENINGS = ("According to the document: ", "In the text above: ", "Please tell me: ", "From the document: ")
ASIDES = ("Note that the ", "Remember that the ", "It is a fact that the ", "As it happened, the ")
