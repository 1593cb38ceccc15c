package http

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html/template"
	"math"
	"regexp"
	"strconv"

	"waitlist.internal/libs/httpapi"
	"waitlist.internal/libs/netguard"
	"waitlist.internal/services/pages/forms"
)

// aa is the contrast that WCAG 2.2 asks of text at level AA.
const aa = 4.5

var colour = regexp.MustCompile(`^#[0-9a-f]{6}$`)

// palette has the background and the default accent of page.css.
type palette struct{ ground, accent string }

func light() palette { return palette{"#ffffff", "#3730a3"} }
func dark() palette  { return palette{"#14141c", "#b3aefc"} }

// luminance is the relative luminance of a colour #rrggbb, as WCAG defines it.
func luminance(c string) (sum float64) {
	for i, weight := range []float64{.2126, .7152, .0722} {
		n, _ := strconv.ParseUint(c[1+2*i:3+2*i], 16, 8) // colour matches
		s := float64(n) / 255
		if s <= .04045 {
			s /= 12.92
		} else {
			s = math.Pow((s+.055)/1.055, 2.4)
		}
		sum += weight * s
	}
	return sum
}

// contrast returns the contrast of two colours: from 1, none, to 21, black on white.
func contrast(a, b string) float64 {
	x, y := luminance(a), luminance(b)
	return (max(x, y) + .05) / (min(x, y) + .05)
}

// onAccent is the colour of text on an accent. One of the two always has enough contrast.
func onAccent(accent string) string {
	if contrast(accent, "#ffffff") >= contrast(accent, "#000000") {
		return "#ffffff"
	}
	return "#000000"
}

// line is the colour of links, borders and outlines: the accent where it can be read.
func (p palette) line(accent string) string {
	if contrast(accent, p.ground) >= aa {
		return accent
	}
	return p.accent
}

// Style is the style sheet of an accent; "": the page has none.
func (v *view) Style() template.CSS {
	if v.accent == "" {
		return ""
	}
	return template.CSS(fmt.Sprintf( //nolint:gosec // of colours alone
		":root{--accent:%s;--on-accent:%s;--line-accent:%s}@media(prefers-color-scheme:dark){:root{--line-accent:%s}}",
		v.accent, onAccent(v.accent), light().line(v.accent), dark().line(v.accent)))
}

// styleHash returns the source by which the policy admits Style.
func (v *view) styleHash() string {
	style := v.Style()
	if style == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(style))
	return " 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// dress gives a page the look of a form, and its language unless the visitor asked for
// one.
func (v *view) dress(f *forms.Form) {
	look := f.Appearance
	v.Picture, v.Logo = f.HeroImageURL, look.LogoURL
	if colour.MatchString(look.Accent) {
		v.accent = look.Accent
	}
	if look.Locale != "" {
		v.catalogue = v.h.languages.choose(httpapi.Query(v.c, "lang"), look.Locale)
	}
}

// origins returns the origins of pictures for img-src, each after a space. Settings may be older than the check of their hosts.
func origins(pictures ...string) (out string) {
	for _, p := range pictures {
		if origin := netguard.Origin(p); origin != "" {
			out += " " + origin
		}
	}
	return out
}
