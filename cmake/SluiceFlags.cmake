# One interface target carries the language level, the warnings and the sanitizers; nothing is set globally.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)

add_library(sluice_flags INTERFACE)
target_compile_features(sluice_flags INTERFACE cxx_std_20)
target_compile_options(sluice_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
  -fvisibility=hidden -fvisibility-inlines-hidden -ffp-contract=off -fno-omit-frame-pointer)
if(SLUICE_WERROR)
  target_compile_options(sluice_flags INTERFACE -Werror)
endif()
if(SLUICE_SANITIZE)
  target_compile_options(sluice_flags INTERFACE -fsanitize=${SLUICE_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(sluice_flags INTERFACE -fsanitize=${SLUICE_SANITIZE})
endif()
if(SLUICE_BUILD_FUZZ)
  target_compile_options(sluice_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
target_link_libraries(sluice_flags INTERFACE Threads::Threads)
