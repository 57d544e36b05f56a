"""What is said in the same words about any fact."""

PAGE_QUESTIONS = (
    "On which page does the document speak of {about}?",
    "On which page is {about} mentioned?",
    "Which page tells about {about}?",
    "On what page do I find something about {about}?",
    "Where in the document is {about} mentioned? Give the page.",
    "Name the page on which {about} comes up.",
)
# One form for all: the choice between an answer and none falls behind the same words, so that a greedy answer
# follows the likelier of both; six wordings of a refusal share its probability and lose to one of an answer.
REPLY = "The answer is {answer}."
PAGE_REPLY = "The answer is page {page}."
TWO_STEP_REPLY = "The answer lies with {bridge}: it is {answer}."
ABSENT_REPLY = "The answer is not in the document."
OPENINGS = ("According to the document: ", "In the text above: ", "Please tell me: ", "From the document: ")
ASIDES = ("Note that the ", "Remember that the ", "It is a fact that the ", "As it happened, the ")
