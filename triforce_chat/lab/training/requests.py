"""What users ask about a document, in many wordings: a draft model learns the answers to these."""

from triforce_chat.lab.tasks.text_data import read_lines

SUMMARIES = read_lines("requests/summaries")
QUESTIONS = read_lines("requests/questions")
