"""LlamaIndex' OpenAILike. See cases.py."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

from cases import ENDS, MOST, QUESTION, Server, Weather, calls, get_weather, run, told


def model(server: Server, structured: bool = False) -> OpenAILike:
    return OpenAILike(
        api_base=server.url,
        api_key="none",
        model=server.model,
        is_chat_model=True,
        is_function_calling_model=True,
        should_use_structured_outputs=structured,
        context_window=2048,
        max_tokens=MOST,
        max_retries=0,
        temperature=0,
        additional_kwargs={"extra_body": ENDS},
    )


def question() -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=QUESTION)]


def text(server: Server) -> dict[str, Any]:
    answer: Any = model(server).chat(question())
    return {"text": answer.message.content, "tokens": answer.raw.usage.completion_tokens}


def stream(server: Server) -> dict[str, Any]:
    parts = [part.delta for part in model(server).stream_chat(question())]
    return {"parts": [part for part in parts if part]}


def tool() -> FunctionTool:
    return FunctionTool.from_defaults(get_weather)


def answer_to(server: Server, answer: Any) -> dict[str, Any]:
    """Calls what an answer calls, and asks the model again."""
    llm = model(server)
    messages = [*question(), answer.message]
    for call in llm.get_tool_calls_from_response(answer):
        result = tool().call(**call.tool_kwargs)
        messages.append(
            ChatMessage(
                role=MessageRole.TOOL,
                content=str(result),
                additional_kwargs={"tool_call_id": call.tool_id},
            )
        )
    return {"calls": list(calls), "answer": llm.chat(messages).message.content}


def tools(server: Server) -> dict[str, Any]:
    answer = model(server).chat_with_tools([tool()], QUESTION, tool_required=True)
    return answer_to(server, answer)


def stream_tools(server: Server) -> dict[str, Any]:
    llm = model(server)
    asked = llm.stream_chat_with_tools([tool()], QUESTION, tool_required=True)
    return answer_to(server, list(asked)[-1])


def predict(server: Server) -> dict[str, Any]:
    """The helper that calls by itself."""
    answer = model(server).predict_and_call([tool()], QUESTION, tool_required=True)
    return {"calls": list(calls), "answer": str(answer)}


def form(structured: bool, server: Server) -> dict[str, Any]:
    prompt = PromptTemplate(QUESTION)
    return told(model(server, structured).structured_predict(Weather, prompt))


def stream_form(server: Server) -> dict[str, Any]:
    llm = model(server, structured=True)
    objects = list(llm.stream_structured_predict(Weather, PromptTemplate(QUESTION)))
    last: Any = objects[-1]
    return Weather.model_validate(last.model_dump()).model_dump()


run(
    ["llama-index-llms-openai-like", "llama-index-core", "openai"],
    {
        "text": text,
        "stream": stream,
        "tools": tools,
        "streamed tools": stream_tools,
        "tools, called by a helper": predict,
        "form": lambda server: form(True, server),
        "form by a tool": lambda server: form(False, server),
        "streamed form": stream_form,
    },
)
