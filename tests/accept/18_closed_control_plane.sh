#!/bin/sh
# Check 18: the control plane refuses and counts strangers, damaged, repeated and outdated frames; by
# default nothing listens beyond loopback.
# Usage: 18_closed_control_plane.sh [BUILD_DIRECTORY] (build/dev), from the root of the tree. Exit 0: it
# holds. The last line has the figures.
set -eu
exec "${1:-build/dev}/bin/closed_control"
