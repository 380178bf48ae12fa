"""Structured output: what a client asks of an answer's form, as bit masks over the vocabulary.

`requested` reads a request, `vocabulary` a tokenizer, `compiling` turns a structure into a grammar
after `trial` showed, in a process of its own, that this ends; `matcher` follows one answer.
"""
