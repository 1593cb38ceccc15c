package http

import (
	"embed"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

//go:embed texts/*.json
var textFiles embed.FS

// catalogue has the texts of one language. Keys with apiPrefix are messages of the REST
// interface, which speaks English; one without a translation is shown as it is.
type catalogue struct {
	lang    string
	texts   map[string]string
	printer *message.Printer
}

const apiPrefix = "api:"

// languages has the catalogues; the first is the default.
type languages struct {
	list    []*catalogue
	matcher language.Matcher
}

func loadLanguages() (*languages, error) {
	tags := []language.Tag{language.English, language.German}
	out := &languages{matcher: language.NewMatcher(tags)}
	for _, tag := range tags {
		raw, err := textFiles.ReadFile("texts/" + tag.String() + ".json")
		if err != nil {
			return nil, fmt.Errorf("read the texts: %w", err)
		}
		c := &catalogue{lang: tag.String(), printer: message.NewPrinter(tag)}
		if err := json.Unmarshal(raw, &c.texts); err != nil {
			return nil, fmt.Errorf("texts in %s: %w", tag, err)
		}
		out.list = append(out.list, c)
	}
	return out, nil
}

// choose returns the language that was asked for, else the browser's.
func (l *languages) choose(asked, accepted string) *catalogue {
	_, i := language.MatchStrings(l.matcher, asked, accepted)
	return l.list[i]
}

// T returns the text of a key, with numbers as is usual in the language. A key without a
// text is a mistake, which fails the page.
func (c *catalogue) T(key string, args ...any) (string, error) {
	text, ok := c.texts[key]
	if !ok {
		return "", fmt.Errorf("there is no text %q in %s", key, c.lang)
	}
	if len(args) == 0 {
		return text, nil
	}
	for i, a := range args {
		if n, ok := a.(*int64); ok {
			args[i] = *n // templates pass optional numbers as they are
		}
	}
	return c.printer.Sprintf(text, args...), nil
}

var digits = regexp.MustCompile(`\d+`)

// translate returns a message of the REST interface in this language. In the catalogue,
// %d stands for each number of the message; a text names as many of them as it likes.
func (c *catalogue) translate(message string) string {
	if text, ok := c.texts[apiPrefix+message]; ok {
		return text
	}
	text, ok := c.texts[apiPrefix+digits.ReplaceAllString(message, "%d")]
	if !ok {
		return message
	}
	for _, n := range digits.FindAllString(message, -1) {
		text = strings.Replace(text, "%d", n, 1)
	}
	return text
}

// number writes n as is usual in the language.
func (c *catalogue) number(n int64) string { return c.printer.Sprintf("%d", n) }
