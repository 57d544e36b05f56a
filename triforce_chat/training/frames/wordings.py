"""What is said in the same words about any fact."""

PAGE_QUESTIONS = (
    "On which page does the document speak of {about}?",
    "On which page is {about} mentioned?",
    "Which page tells about {about}?",
    "On what page do I find something about {about}?",
    "Where in the document is {about} mentioned? Give the page.",
    "Name the page on which {about} comes up.",
)
PAGE_REPLIES = (
    "It is on page {page}.",
    "That is on page {page}.",
    "The document speaks of it on page {page}.",
    "Page {page} tells about it.",
)
ABSENT_REPLIES = (
    "That is not in the document.",
    "This is not in the document.",
    "The answer is not in the document.",
    "I am sorry, but that is not in the document.",
    "What you ask about is not in the document.",
    "I cannot say, because it is not in the document.",
)
OPENINGS = ("According to the document: ", "In the text above: ", "Please tell me: ", "From the document: ")
ASIDES = ("Note that the ", "Remember that the ", "It is a fact that the ", "As it happened, the ")
