#!/bin/sh
# Fetches the newest lists of free mail providers and of disposable domains.
# Needs npm and pip.
set -eu
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# The package's file has one quoted domain a line.
npm pack --silent --pack-destination "$tmp" free-email-domains >/dev/null
tar -xzf "$tmp"/free-email-domains-*.tgz -C "$tmp"
{ tr -d '[]," \t\r' <"$tmp/package/domains.json"; grep -v '^#' extra.txt; } |
	grep . | LC_ALL=C sort -u >"$tmp/list"
# A changed file format must not leave the list empty.
[ "$(wc -l <"$tmp/list")" -gt 5000 ]
cp "$tmp/package/LICENSE.md" LICENSE.free-email-domains
cp "$tmp/list" free_providers.txt

python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$tmp" disposable-email-domains
python3 -m zipfile -e "$tmp"/disposable_email_domains-*.whl "$tmp/wheel"
PYTHONPATH="$tmp/wheel" python3 -c 'import disposable_email_domains as d; print(*d.blocklist, sep="\n")' |
	LC_ALL=C sort -u >"$tmp/disposable"
[ "$(wc -l <"$tmp/disposable")" -gt 3000 ]
cp "$tmp"/wheel/disposable_email_domains-*.dist-info/licenses/LICENSE.txt LICENSE.disposable-email-domains
cp "$tmp/disposable" disposable_domains.txt
