"""One loaded conversation for other programs: OpenAI's chat completions over HTTP."""
