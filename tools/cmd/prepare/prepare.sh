#!/usr/bin/env bash
# Installs the programs that this machine lacks: as root with apt on Debian and Ubuntu,
# without starting the servers among them. Elsewhere it says in one message what to
# install. Arguments say for what:
#
#	prepare.sh [-n] run|npm|test|apache|python|schemathesis|clients|lab|ci...
#
# What is missing then is an error, but for run: the suite has stand-ins. ci uses sudo
# where it is not root. -n prints Debian's names of what is missing, and does no more.
set -euo pipefail

chromium=chromium
[[ $(cat /etc/os-release 2>/dev/null) != *ID=ubuntu* ]] || chromium=chromium-browser

missing=()
# need PACKAGE CHECK...: the package is missing where the check fails. What counts is
# the program, wherever it came from.
need() {
	local package=$1
	shift
	[[ " ${missing[*]-} " == *" $package "* ]] || "$@" >/dev/null 2>&1 || missing+=("$package")
}
any() {
	local program
	for program; do ! type -P "$program" || return 0; done
	return 1
}
# Also where libs/devservers looks.
postgres() {
	any "$1" || [ -n "$(ls -d /usr/lib/postgresql*/{,*/}bin/"$1" /usr/pgsql-*/bin/"$1" /usr/libexec/postgresql*/"$1" \
		/{opt/homebrew,usr/local}/opt/postgresql@*/bin/"$1" /Applications/Postgres.app/Contents/Versions/latest/bin/"$1")" ]
}
pgbouncer() { any pgbouncer || ls /usr/sbin/pgbouncer; }

run() {
	[ -n "${POSTGRES_URL:-}" ] || need postgresql postgres postgres
	[ -n "${REDIS_URL:-}" ] || need redis-server any redis-server
}
npm() { need npm any npm; }
tests() {
	need git any git
	need curl any curl # the quickstart
	need gcc any gcc # for the race detector, with the next
	need libc6-dev gcc -E -include stdlib.h -x c /dev/null
	need postgresql postgres postgres
	need redis-server any redis-server
	need pgbouncer pgbouncer
	# The names that chromedp tries.
	need $chromium any headless_shell headless-shell chromium chromium-browser google-chrome google-chrome-stable google-chrome-beta \
		google-chrome-unstable chrome /usr/local/bin/chrome /snap/bin/chromium \
		/Applications/{Chromium.app/Contents/MacOS/Chromium,'Google Chrome.app/Contents/MacOS/Google Chrome'}
	npm # fetches axe, which looks at the pages, and builds the TypeScript client
}
apache() {
	need openjdk-17-jre-headless any java
	need maven any mvn
}
python() {
	need python3 any python3
	need python3-venv python3 -c 'import ensurepip'
}
schemathesis() {
	need curl any curl
	python
}
clients() {
	npm
	schemathesis
	need openjdk-17-jdk-headless any javac
	need maven any mvn
}
lab() {
	run
	need iproute2 any ip # network namespaces
}
ci() {
	tests
	apache
	schemathesis
	clients
	lab
	need make any make
	need postgresql postgres pgbench # the other side of the benchmarks' ratio
}

dry=
if [ "${1:-}" = -n ]; then
	dry=yes
	shift
fi
for purpose; do
	case $purpose in
	run | npm | apache | python | schemathesis | clients | lab | ci) "$purpose" ;;
	test) tests ;; # test is a command
	*) echo "$0 knows no $purpose" >&2 && exit 1 ;;
	esac
done
if [ -n "$dry" ]; then
	printf '%s\n' ${missing[@]+"${missing[@]}"}
	exit
fi
[ ${#missing[@]} -gt 0 ] || exit 0

root=()
[[ $(id -u) = 0 || $* != *ci* ]] || root=(sudo)
if ! command -v apt-get >/dev/null || [[ $(id -u) != 0 && ${#root[@]} = 0 ]]; then
	echo "not installed: ${missing[*]} (Debian, Ubuntu: sudo apt-get install ${missing[*]})" >&2
	[ "$*" = run ]
	exit
fi
echo "installing ${missing[*]}"
# Keep the packages from starting servers on the default ports.
if [ ! -e /usr/sbin/policy-rc.d ]; then
	trap '"${root[@]}" rm -f /usr/sbin/policy-rc.d' EXIT
	printf '#!/bin/sh\nexit 101\n' | "${root[@]}" tee /usr/sbin/policy-rc.d >/dev/null
	"${root[@]}" chmod +x /usr/sbin/policy-rc.d
fi
if ! { "${root[@]}" apt-get update -qq && "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
	apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; }; then
	echo "could not install ${missing[*]}" >&2
	[ "$*" = run ]
fi
