# Short names for the scripts; CMake does the work (see CMakePresets.json).
.PHONY: all demo check deps format
all: demo
demo: ; @scripts/demo
check: ; @scripts/check
deps: ; @scripts/install-deps
format: ; @scripts/format
