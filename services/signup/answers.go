package signup

import (
	"encoding/json"
	"slices"
	"strings"

	"waitlist.internal/libs/body"
)

// Bounds of custom answers (decisions.md): one text in code points, all of them
// in bytes of JSON as sent.
const (
	maxAnswer  = 1000
	maxAnswers = 16 << 10
)

// readAnswers judges custom_answers by the waitlist's questions and returns
// them as they are stored, nil where there are none.
func readAnswers(form *body.Object, questions []Question) []byte {
	if raw, ok := form.Raw("custom_answers"); ok && len(raw) > maxAnswers {
		form.Fail("custom_answers", "must not exceed 16 KiB")
		return nil
	}
	answers, given := form.Object("custom_answers")
	if !given && form.Has("custom_answers") && !form.IsNull("custom_answers") {
		return nil // of a wrong type, which is on the list of errors by now
	}
	stored := map[string]any{}
	fail := func(id, message string) { form.Fail("custom_answers."+id, message) }
	for _, q := range questions {
		if !given || !answers.Has(q.ID) || answers.IsNull(q.ID) {
			if q.Required {
				fail(q.ID, "is required")
			}
			continue
		}
		switch q.Type {
		case QuestionCheckbox:
			if checked, ok := answers.Bool(q.ID); ok {
				if q.Required && !checked {
					fail(q.ID, "must be true")
				}
				stored[q.ID] = checked
			}
		case QuestionDropdown:
			if choice, ok := answers.String(q.ID, 0); ok {
				if !slices.Contains(q.Options, choice) {
					fail(q.ID, "must be one of the options")
				}
				stored[q.ID] = choice
			}
		case QuestionText:
			if text, ok := answers.String(q.ID, maxAnswer); ok {
				if q.Required && strings.TrimSpace(text) == "" {
					fail(q.ID, "is required")
				}
				stored[q.ID] = text
			}
		}
	}
	if given {
		for _, id := range answers.Keys() {
			if !slices.ContainsFunc(questions, func(q Question) bool { return q.ID == id }) {
				fail(id, "is not a question of this waitlist")
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
