package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"waitlist.internal/k8s/canary/api/v1alpha1"
)

type buffer = bytes.Buffer

// Exit codes.
const (
	promoted = iota
	failed
	wrongUse
	noVerdict
	superseded
	frozen
)

// outcome is the report on an image.
type outcome struct {
	Canary  string        `json:"canary"`
	Image   string        `json:"image"`
	Verdict string        `json:"verdict"`
	Reason  string        `json:"reason"`
	Message string        `json:"message"`
	Seconds float64       `json:"seconds"`
	Code    int           `json:"code"`
	took    time.Duration `json:"-"`
}

var verdicts = map[int]string{
	promoted: "Promoted", failed: "Failed", noVerdict: "NoVerdict", superseded: "Superseded", frozen: "Frozen",
}

// wait polls the Canary until there is a verdict on the image. It waits out outages of the API server.
func (c *command) wait(ctx context.Context) int {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	seen, last := false, "The operator has not seen the image yet."
	for {
		now, err := c.get(ctx)
		if err != nil && ctx.Err() == nil {
			last = err.Error()
			fmt.Fprintln(c.stderr, last)
		} else if err == nil {
			seen = seen || has(now.Status.Candidate, c.image)
			code, done := judged(now, c.image, seen)
			reason, message := readyCondition(now)
			if message != last {
				fmt.Fprintln(c.stderr, message)
				last = message
			}
			if done {
				return c.tell(outcome{Reason: reason, Message: message, Code: code}, time.Since(start))
			}
		}
		select {
		case <-ctx.Done():
			return c.tell(outcome{Reason: "Timeout", Message: last, Code: noVerdict}, time.Since(start))
		case <-time.After(poll):
		}
	}
}

func has(r *v1alpha1.Revision, image string) bool {
	return r != nil && slices.ContainsFunc(r.Images, func(i string) bool { return i == image || strings.HasSuffix(i, "@"+image) })
}

// judged returns the exit code for an image, or done = false while there is no verdict. seen says that a
// candidate has had the image.
func judged(c *v1alpha1.Canary, image string, seen bool) (code int, done bool) {
	s := &c.Status
	switch {
	case has(s.Candidate, image) && s.Phase == v1alpha1.Failed:
		return failed, true
	case has(s.Candidate, image) && s.Phase == v1alpha1.Frozen:
		return frozen, true
	case has(s.Candidate, image):
		return 0, false
	case has(s.Stable, image) && s.Phase != v1alpha1.Initializing:
		// This includes the first version of all, which never was a candidate.
		return promoted, true
	case seen && s.Phase != v1alpha1.Promoting && s.Phase != v1alpha1.Initializing:
		return superseded, true
	}
	return 0, false
}

func readyCondition(c *v1alpha1.Canary) (reason, message string) {
	if r := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.Ready); r != nil {
		return r.Reason, r.Message
	}
	return "Unknown", "The operator has not looked at the Canary yet."
}

func (c *command) tell(o outcome, took time.Duration) int {
	o.Canary, o.Image, o.Verdict, o.took, o.Seconds = c.name, c.image, verdicts[o.Code], took, took.Seconds()
	if err := reports[c.report](c.stdout, o); err != nil {
		fmt.Fprintln(c.stderr, err)
		return wrongUse
	}
	return o.Code
}

var reports = map[string]func(io.Writer, outcome) error{
	"text": func(w io.Writer, o outcome) error {
		_, err := fmt.Fprintf(w, "%s: %s after %s. %s: %s\n", o.Canary, o.Verdict, o.took.Round(time.Second), o.Reason, o.Message)
		return err
	},
	"json":  func(w io.Writer, o outcome) error { return json.NewEncoder(w).Encode(o) },
	"junit": junit,
}

type suite struct {
	XMLName  xml.Name `xml:"testsuite"`
	Name     string   `xml:"name,attr"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Case     testcase `xml:"testcase"`
}

type testcase struct {
	Class   string   `xml:"classname,attr"`
	Name    string   `xml:"name,attr"`
	Time    float64  `xml:"time,attr"`
	Failure *failure `xml:"failure,omitempty"`
}

type failure struct {
	Type    string `xml:"type,attr"`
	Message string `xml:"message,attr"`
}

func junit(w io.Writer, o outcome) error {
	s := suite{Name: "canary", Tests: 1, Case: testcase{Class: o.Canary, Name: o.Image, Time: o.Seconds}}
	if o.Code != promoted {
		s.Failures, s.Case.Failure = 1, &failure{Type: o.Verdict, Message: o.Reason + ": " + o.Message}
	}
	raw, err := xml.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, raw)
	return err
}
