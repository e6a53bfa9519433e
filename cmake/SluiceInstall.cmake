# Install rules: program, library, public headers, package files, built-in models.
include(GNUInstallDirs)
