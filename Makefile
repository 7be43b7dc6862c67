# Every target works from a fresh clone: tools/setup.py makes .venv, installs what is missing and builds. PYTHON picks
# the interpreter that .venv is made from (3.11 or newer).
PYTHON ?= python3
SETUP = $(PYTHON) tools/setup.py
RUN = .venv/bin/python

serve: build
	$(RUN) -m typebar serve

chat: build
	$(RUN) -m typebar chat

build:
	@$(SETUP) run

page:
	@$(PYTHON) tools/page.py

test:
	@$(SETUP) test && $(RUN) tools/check.py

test-page:
	@$(SETUP) test && $(RUN) -m pytest tests/browser

screenshots:
	@$(SETUP) test && $(RUN) tests/browser/screenshots.py

lint:
	@$(SETUP) test && $(RUN) tools/check.py lint

format:
	@$(SETUP) test && $(RUN) tools/check.py format

clean:
	rm -rf build dist src/typebar/*.so src/typebar/web web/node_modules .mypy_cache .ruff_cache .pytest_cache

.PHONY: serve chat build page test test-page screenshots lint format clean
