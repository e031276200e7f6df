"""The HTTP face of the runtime: SGLang's native protocol and the OpenAI subset, over one engine."""
