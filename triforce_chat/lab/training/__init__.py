"""Material for teaching a model to read long documents: planted facts, documents, conversations."""
