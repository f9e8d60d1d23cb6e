from .citing import citations_of as citations_of
from .citing import with_citations as with_citations
from .embedding import AntiphonEmbedding as AntiphonEmbedding
from .llm import AntiphonLLM as AntiphonLLM
from .passage_index import VectorStorePassages as VectorStorePassages
from .reranker import AntiphonRerank as AntiphonRerank
from .retriever import AntiphonRetriever as AntiphonRetriever
from .vector_store import AntiphonVectorStore as AntiphonVectorStore
