# Short names for the scripts; CMake does the work (see CMakePresets.json).
.PHONY: all demo check check-arm deps format
all: demo
demo: ; @scripts/demo
check: ; @scripts/check
check-arm: ; @scripts/check-arm
deps: ; @scripts/install-deps
format: ; @scripts/format
