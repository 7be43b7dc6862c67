"""Text in and out of the model: tokenizer, chat templates, incremental detokenizing.

Import the modules directly (`typebar.text.tokenizer`, `.chat`, `.stream`): only who renders a chat pays for jinja2.
"""
