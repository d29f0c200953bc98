#!/usr/bin/env bash
# Plants each break of planted_breaks.txt into a copy of the tree, builds the test program beside it
# and shows that the named test fails. The last line has the score; 1 if a break stays unseen.
#   tests/planted_breaks.sh [COPY [FIRST [LAST]]]   COPY: made if it is not there; default build/breaks
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
copy=${1:-build/breaks}
first=${2:-1}
last=${3:-1000}
mkdir -p "$copy"
copy=$(cd "$copy" && pwd)
tar --exclude=./build --exclude=./.git --exclude=node_modules -cf - . | tar -xf - -C "$copy"
export CCACHE_BASEDIR=$copy CCACHE_NOHASHDIR=1
cd "$copy"
cmake --preset dev >/dev/null

# run PROGRAM FILTER: the tests of that name; 3 when there is none.
run() {
  local out
  out=$(timeout 300 "build/dev/bin/$1" --gtest_filter="$2" 2>&1) || return 1
  grep -q '^\[==========\] [1-9][0-9]* test.* ran' <<<"$out" || return 3
}

number=0 seen=0 planted=0
while IFS='|' read -r program filter file old new; do
  case $program in '' | '#'*) continue ;; esac
  number=$((number + 1))
  if [ "$number" -lt "$first" ] || [ "$number" -gt "$last" ]; then continue; fi
  planted=$((planted + 1))
  cp "$root/$file" "$file"
  cmake --build --preset dev -- "bin/$program" >build/break.log 2>&1
  run "$program" "$filter" || { echo "$number $filter: does not pass unbroken"; continue; }
  OLD=$old NEW=$new perl -0pi -e '
    my $count = () = /\Q$ENV{OLD}\E/g;
    die "$count places have the text\n" if $count != 1;
    s/\Q$ENV{OLD}\E/$ENV{NEW}/' "$file" || { echo "$number $file: cannot be planted"; continue; }
  if ! cmake --build --preset dev -- "bin/$program" >build/break.log 2>&1; then
    echo "$number $file: does not compile"
  elif run "$program" "$filter"; then
    echo "$number $file: UNSEEN by $filter"
  else
    echo "$number $file: seen by $filter"
    seen=$((seen + 1))
  fi
  cp "$root/$file" "$file"
done < <(sed 's/ *| */|/g' "$root/tests/planted_breaks.txt")
echo "planted_breaks seen=$seen planted=$planted"
[ "$seen" -eq "$planted" ]
