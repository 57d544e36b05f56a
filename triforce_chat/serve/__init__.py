"""An HTTP server with OpenAI's chat completions interface, over one session and its documents."""
