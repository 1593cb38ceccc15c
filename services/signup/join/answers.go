package join

import (
	"encoding/json"
	"slices"
	"strings"

	"waitlist.internal/libs/body"
	"waitlist.internal/services/signup/waitlist"
)

// Bounds of custom answers: of one text in code points, and of all answers in
// bytes of JSON as sent.
const (
	maxAnswer  = 1000
	maxAnswers = 16 << 10
)

// readAnswers checks custom_answers against the waitlist's questions and returns
// the stored form, nil without answers.
func readAnswers(form *body.Object, questions []waitlist.Question) []byte {
	if raw, ok := form.Raw("custom_answers"); ok && len(raw) > maxAnswers {
		form.Fail("custom_answers", "All answers together must have at most 16 KiB of JSON.")
		return nil
	}
	answers, given := form.Object("custom_answers")
	if !given && form.Has("custom_answers") && !form.IsNull("custom_answers") {
		return nil // Object has reported the wrong type
	}
	stored := map[string]any{}
	fail := func(id, message string) { form.Fail("custom_answers."+id, message) }
	for _, q := range questions {
		if !given || !answers.Has(q.ID) || answers.IsNull(q.ID) {
			if q.Required {
				fail(q.ID, body.Required)
			}
			continue
		}
		switch q.Type {
		case waitlist.QuestionCheckbox:
			if checked, ok := answers.Bool(q.ID); ok {
				if q.Required && !checked {
					fail(q.ID, "Check this box to continue.")
				}
				stored[q.ID] = checked
			}
		case waitlist.QuestionDropdown:
			if choice, ok := answers.String(q.ID, 0); ok {
				if !slices.Contains(q.Options, choice) {
					fail(q.ID, "Choose one of the options.")
				}
				stored[q.ID] = choice
			}
		case waitlist.QuestionText:
			if text, ok := answers.String(q.ID, maxAnswer); ok {
				if q.Required && strings.TrimSpace(text) == "" {
					fail(q.ID, body.Required)
				}
				stored[q.ID] = text
			}
		}
	}
	if given {
		for _, id := range answers.Keys() {
			if !slices.ContainsFunc(questions, func(q waitlist.Question) bool { return q.ID == id }) {
				fail(id, "This waitlist has no such question.")
			}
		}
	}
	if len(stored) == 0 {
		return nil
	}
	out, err := json.Marshal(stored)
	if err != nil { // strings and booleans always marshal
		panic(err)
	}
	return out
}
