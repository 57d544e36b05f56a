"""The terminal: chat loop, panel and streamed answers. It sees events and never imports torch."""
