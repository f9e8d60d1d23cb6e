from .chat import ChatAntiphon as ChatAntiphon
from .embeddings import AntiphonEmbeddings as AntiphonEmbeddings
from .llm import AntiphonLLM as AntiphonLLM
from .passage_index import VectorStorePassages as VectorStorePassages
from .reranker import AntiphonReranker as AntiphonReranker
from .retriever import AntiphonRetriever as AntiphonRetriever
from .vector_store import AntiphonVectorStore as AntiphonVectorStore
