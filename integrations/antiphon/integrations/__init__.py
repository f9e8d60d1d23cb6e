"""Adapters for LangChain, LlamaIndex and vLLM. No other package of Antiphon imports them."""
