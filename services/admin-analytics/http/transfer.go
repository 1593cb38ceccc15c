package http

import (
	"github.com/gin-gonic/gin"

	"waitlist.internal/libs/authn"
)

// transferRoutes adds export and import.
func (h handler) transferRoutes(gin.IRouter, authn.Authorizer) {}
