"""How well a model reads, remembers and answers, and how well its drafts guess."""
