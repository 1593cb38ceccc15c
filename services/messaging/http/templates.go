package http

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/authn"
	"waitlist.internal/libs/httpapi"
	"waitlist.internal/services/messaging/templates"
)

func (h handler) templateRoutes(g gin.IRouter) {
	g.POST("", httpapi.H(h.createTemplate))
	g.GET("", httpapi.H(h.listTemplates))
	g.GET("/:template_id", httpapi.H(h.getTemplate))
	g.PATCH("/:template_id", httpapi.H(h.updateTemplate))
	g.DELETE("/:template_id", httpapi.H(h.deleteTemplate))
}

// templateSummary is a template in the answers to POST and the list.
type templateSummary struct {
	TemplateID      string `json:"template_id"`
	TemplateType    string `json:"template_type"`
	Name            string `json:"name"`
	SubjectTemplate string `json:"subject_template"`
	CreatedAt       string `json:"created_at"`
}

func summarize(t templates.Template) templateSummary {
	return templateSummary{t.ID, string(t.Type), t.Name, t.Subject, timestamp(t.CreatedAt)}
}

func (h handler) createTemplate(c *gin.Context) error {
	return httpapi.WithBody(c, func(raw []byte) error {
		t, err := h.templates.Create(c.Request.Context(), authn.Actor(c), accountEmail(c), raw)
		if err != nil {
			return err
		}
		httpapi.JSON(c, http.StatusCreated, summarize(t))
		return nil
	})
}

func (h handler) listTemplates(c *gin.Context) error {
	list, err := h.templates.List(c.Request.Context(), authn.Actor(c), accountEmail(c))
	if err != nil {
		return err
	}
	out := make([]templateSummary, 0, len(list))
	for _, t := range list {
		out = append(out, summarize(t))
	}
	httpapi.JSON(c, http.StatusOK, map[string][]templateSummary{"templates": out})
	return nil
}

func (h handler) getTemplate(c *gin.Context) error {
	t, err := h.templates.Get(c.Request.Context(), authn.Actor(c), accountEmail(c), c.Param("template_id"))
	if err != nil {
		return err
	}
	httpapi.JSON(c, http.StatusOK, struct {
		templateSummary
		HTML string `json:"html_body_template"`
		Text string `json:"text_body_template"`
	}{summarize(t), t.HTML, t.Text})
	return nil
}

func (h handler) updateTemplate(c *gin.Context) error {
	return httpapi.WithBody(c, func(raw []byte) error {
		id := c.Param("template_id")
		if err := h.templates.Update(c.Request.Context(), authn.Actor(c), accountEmail(c), id, raw); err != nil {
			return err
		}
		httpapi.JSON(c, http.StatusOK, struct {
			TemplateID string `json:"template_id"`
			Updated    bool   `json:"updated"`
		}{id, true})
		return nil
	})
}

func (h handler) deleteTemplate(c *gin.Context) error {
	if err := h.templates.Delete(c.Request.Context(), authn.Actor(c), accountEmail(c), c.Param("template_id")); err != nil {
		return err
	}
	httpapi.NoContent(c)
	return nil
}
