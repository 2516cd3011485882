package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Answer is what is said on a path whatever is asked there.
type Answer struct {
	Status int // 0: 200
	Body   string
	Hang   bool // never answers: the client gives up, or the test ends
}

// Status is the Answer of an API server that refuses a request.
func Status(code int, reason, message string) Answer {
	return Answer{Status: code, Body: string(encode(metav1.Status{
		TypeMeta: statusType, Status: metav1.StatusFailure,
		Code: int32(code), Reason: metav1.StatusReason(reason), Message: message,
	}))}
}

var statusType = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}

func (a Answer) write(w http.ResponseWriter) {
	code := a.Status
	if code == 0 {
		code = http.StatusOK
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, a.Body)
}

func reply(w http.ResponseWriter, code int, object any) {
	Answer{Status: code, Body: string(encode(object))}.write(w)
}

// refuse answers with the Status of the error.
func refuse(w http.ResponseWriter, err error) {
	said := apierrors.APIStatus(apierrors.NewInternalError(err))
	errors.As(err, &said)
	status := said.Status()
	status.TypeMeta = statusType
	reply(w, int(status.Code), status)
}

func notPlayed(w http.ResponseWriter, r *http.Request) {
	Status(http.StatusNotFound, string(metav1.StatusReasonNotFound),
		fmt.Sprintf("the stand-in does not play %s %s", r.Method, r.URL.Path)).write(w)
}

func badRequest(format string, args ...any) error {
	return apierrors.NewBadRequest(fmt.Sprintf(format, args...))
}

// encode is for API types, which always can be.
func encode(object any) []byte {
	raw, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return raw
}
