"""Forty tenants with nearly equal contracts, retrievers for them, and a model that quotes its prompt."""

import re
from typing import Any

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.language_models import SimpleChatModel
from langchain_core.messages import BaseMessage
from langchain_core.retrievers import BaseRetriever
from llama_index.core.base.base_retriever import BaseRetriever as NodeRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

TENANTS = range(40)
SHARED = "The hall was built of brick in nineteen hundred and nine."


def contract(tenant: int) -> str:
    """Return a tenant's contract; pairs of tenants have the same text in different documents."""
    return f"The rent of the hall is paid on the first of the month to account {tenant // 2:05d}, and on no other day."


def source(tenant: int) -> str:
    return f"/tenants/{tenant:02d}.md"


def question(tenant: int) -> str:
    """Return a tenant's question."""
    return f"When is the rent of tenant {tenant:02d} paid?"


def tenant_document(tenant: int) -> tuple[str, str]:
    """Return the text that a tenant's answer quotes and its source; every fourth tenant has no contract."""
    return (SHARED, "hall.md") if tenant % 4 == 3 else (contract(tenant), source(tenant))


def tenant_of(query: str) -> int:
    found = re.search(r"tenant (\d+)", query)
    assert found is not None, query
    return int(found[1])


class Contracts(BaseRetriever):
    """A custom LangChain retriever: the contract of the tenant in the question."""

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        text, where = tenant_document(tenant_of(query))
        return [Document(text, metadata={"source": where}), Document("Bees dance.", metadata={"source": "bees.md"})]


class ContractNodes(NodeRetriever):
    """The same retriever for LlamaIndex."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        text, where = tenant_document(tenant_of(query_bundle.query_str))
        return [
            NodeWithScore(node=TextNode(text=text, metadata={"source": where}), score=1.0),
            NodeWithScore(node=TextNode(text="Bees dance.", metadata={"source": "bees.md"}), score=0.5),
        ]


def quoting_answer(prompt: str) -> str:
    """Return an answer that names the tenant and quotes the contract in the prompt."""
    found = re.findall(r"The rent of the hall[^.]*\.|The hall was built[^.]*\.", prompt)
    whose = re.findall(r"tenant (\d\d)", prompt)
    return f"To {whose[-1] if whose else 'nobody'}: {found[-1]}" if found else "It says nothing."


class QuotingChat(SimpleChatModel):
    """A chat model of another package that answers with `quoting_answer`."""

    @property
    def _llm_type(self) -> str:
        return "quoting"

    def _call(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any) -> str:
        return quoting_answer("\n".join(str(message.text) for message in messages))
