#!/bin/sh
# Fetches the newest list of free mail providers: make lists. Needs npm.
# The package's file has one quoted domain a line.
set -eu
cd "$(dirname "$0")"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
npm pack --silent --pack-destination "$tmp" free-email-domains >/dev/null
tar -xzf "$tmp"/free-email-domains-*.tgz -C "$tmp"
{ tr -d '[]," \t\r' <"$tmp/package/domains.json"; grep -v '^#' extra.txt; } |
	grep . | LC_ALL=C sort -u >"$tmp/list"
# A changed file format must not leave the list empty.
[ "$(wc -l <"$tmp/list")" -gt 5000 ]
cp "$tmp/package/LICENSE.md" LICENSE.free-email-domains
cp "$tmp/list" free_providers.txt
