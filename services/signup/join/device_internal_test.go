package join

import (
	"strings"
	"testing"
)

func TestDeviceType(t *testing.T) {
	for userAgent, want := range map[string]string{
		"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/116.0.0.0 " +
			"Safari/537.36": "desktop",
		"Mozilla/5.0 (Macintosh; Intel Mac OS X 13_5) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/16.6 " +
			"Safari/605.1.15": "desktop",
		"Mozilla/5.0 (X11; Linux x86_64; rv:117.0) Gecko/20100101 " +
			"Firefox/117.0": "desktop",
		"Mozilla/5.0 (iPhone; CPU iPhone OS 16_6 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/16.6 Mobile/15E148 " +
			"Safari/604.1": "mobile",
		"Mozilla/5.0 (Linux; Android 13; Pixel 7) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/116.0.0.0 Mobile " +
			"Safari/537.36": "mobile",
		"Mozilla/5.0 (Android 13; Mobile; rv:117.0) Gecko/117.0 " +
			"Firefox/117.0": "mobile",
		"Mozilla/5.0 (iPad; CPU OS 16_6 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/16.6 Mobile/15E148 " +
			"Safari/604.1": "tablet",
		"Mozilla/5.0 (Linux; Android 13; SM-X700) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/116.0.0.0 " +
			"Safari/537.36": "tablet",
		"Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/116.0.0.0 " +
			"Safari/537.36": "tablet",
		"Mozilla/5.0 (Linux; Android 9; KFMAWI) AppleWebKit/537.36 (KHTML, like Gecko) Silk/108.4.6 like Chrome/108.0.5359.160 " +
			"Safari/537.36": "tablet",
		"Mozilla/5.0 (Android 13; Tablet; rv:117.0) Gecko/117.0 " +
			"Firefox/117.0": "tablet",
		"Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)": "",
		"Mozilla/5.0 (Linux; Android 6.0.1; Nexus 5X) Chrome/116.0.0.0 Mobile Safari/537.36 (compatible; Googlebot/2.1; " +
			"+http://www.google.com/bot.html)": "",
		strings.Repeat(" ", maxUserAgent) + "Mozilla/5.0 (Windows NT 10.0; Win64; x64) Chrome/116.0.0.0 " +
			"Safari/537.36": "",
		"curl/8.1.2": "",
		"":           "",
	} {
		if got := deviceType(userAgent); got != want {
			t.Errorf("%q: %q, want %q", userAgent, got, want)
		}
	}
}
