from .chat import ChatAntiphon as ChatAntiphon
from .citation_handler import CitationHandler as CitationHandler
from .citation_handler import CitedAnswer as CitedAnswer
from .embeddings import AntiphonEmbeddings as AntiphonEmbeddings
from .llm import AntiphonLLM as AntiphonLLM
from .reranker import AntiphonReranker as AntiphonReranker
from .retriever import AntiphonRetriever as AntiphonRetriever
from .vector_store_index import VectorStorePassages as VectorStorePassages
