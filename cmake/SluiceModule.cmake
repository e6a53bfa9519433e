# sluice_module(NAME SOURCES ... [DEPS module ...] [LIBS target ...])
#
# One OBJECT library per folder of src/. DEPS names the modules it may include and link; a module can only
# name modules that were declared before it, so an upward or circular edge stops the configuration. The
# test lint.layers checks that the #include lines keep to the same list.
set_property(GLOBAL PROPERTY SLUICE_MODULES "")
# Libraries of other projects that the modules link, for the exported static library.
set_property(GLOBAL PROPERTY SLUICE_LIBS "")

function(sluice_module name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LIBS" ${ARGN})
  get_property(known GLOBAL PROPERTY SLUICE_MODULES)
  foreach(dep IN LISTS ARG_DEPS)
    if(NOT dep IN_LIST known)
      message(FATAL_ERROR "module ${name} may not depend on ${dep}: it is not a lower module")
    endif()
  endforeach()
  add_library(sluice_${name} OBJECT ${ARG_SOURCES})
  target_include_directories(sluice_${name} PUBLIC "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
  target_link_libraries(sluice_${name} PUBLIC sluice_flags ${ARG_LIBS})
  set_target_properties(sluice_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  set_property(GLOBAL APPEND PROPERTY SLUICE_MODULES ${name})
  set_property(GLOBAL PROPERTY SLUICE_DEPS_${name} "${ARG_DEPS}")
  get_property(libs GLOBAL PROPERTY SLUICE_LIBS)
  list(APPEND libs ${ARG_LIBS})
  list(REMOVE_DUPLICATES libs)
  set_property(GLOBAL PROPERTY SLUICE_LIBS "${libs}")
endfunction()
