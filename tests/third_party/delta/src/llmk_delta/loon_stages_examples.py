"""Examples for the conformance kit: answers in stages, and what they mean."""

from __future__ import annotations

from llmk.api import ParserContext
from llmk_testing.parser_example import ParserExample

STAGES = (
    ParserExample(
        text="<SUMMARY> Count. </SUMMARY>\n\n<CAPTION> Two cups. </CAPTION>\n\n<REASONING> 1 < 2 </REASONING>\n\n"
        "<CONCLUSION> Two </CONCLUSION>",
        reasoning="Count. \n\nTwo cups. \n\n1 < 2 \n\n",
        content="Two ",
    ),
    ParserExample(
        text="<SUMMARY>one <CAPTION>two</SUMMARY></CAPTION> three <CONCL",
        reasoning="one two ",
        content="three <CONCL",
    ),
    ParserExample(
        text="Plain </REASONING> and <b>bold</b>. <REASONING>\n\n so<CONCLUSION>\nYes.</CONCLUSION> </CONCLUSION>",
        reasoning="so",
        content="Plain </REASONING> and <b>bold</b>. Yes. </CONCLUSION>",
    ),
    ParserExample(
        text="<SUMMARY>a<CONCLUSION>b<REASONING>c</REASONING>d<CAPTION>e</CAP",
        reasoning="ace</CAP",
        content="bd",
    ),
    ParserExample(
        text="\n started by the prompt</REASONING>Oslo.",
        reasoning="started by the prompt",
        content="Oslo.",
        context=ParserContext(prompt_tail="assistant\n<REASONING>\n"),
    ),
    ParserExample(
        text=" Oslo.", content=" Oslo.", context=ParserContext(prompt_tail="What is <SUMMARY>?\nassistant\n")
    ),
)
