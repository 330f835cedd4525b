/* The pointwise half of an LSTM step in one pass over the data. cell.py says what each function means, checks every
 * argument and does the same with torch where this is not built.
 *
 * Addresses, row strides (in elements) and sizes come in as integers: nothing of torch is needed to build or load this.
 * Loops are written so that a compiler turns them into vector code: no branches, no calls, float32 throughout.
 */

#define _GNU_SOURCE /* RTLD_DEFAULT */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <math.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INLINE static inline __attribute__((always_inline))
/* Same-index aliasing is all that there may be: see the arguments of cell.py. */
#define VECTORIZE _Pragma("omp simd")

/* ---- arithmetic: absolute errors of sigmoid and tanh are at most 1.5e-7; NaN goes through ---- */

/* Beyond these the functions are constant in float32. Volatile: a compiler that knows the bounds makes branches of
 * `between` and several times as many instructions of what follows. */
static const volatile float SIGMOID_BOUND = 87.0f, TANH_BOUND = 10.0f;

typedef struct {
    float sigmoid, tanh;
} Bounds;

INLINE Bounds read_bounds(void)
{
    Bounds bounds = {SIGMOID_BOUND, TANH_BOUND};
    return bounds;
}

/* Clamp; NaN stays, and a bound that is NaN is none. The order of operands is that of minps and maxps. */
INLINE float between(float x, float bound)
{
    x = -bound > x ? -bound : x;
    return bound < x ? bound : x;
}

/* exp(k x) = scale (1 + rest) for k = -1 or 2 and |k x| <= 87: scale a power of two, rest by a polynomial in the
 * remainder r, minimax for exp(r) - 1 on |r| <= ln(2) / 2 with an error of 3e-9. (Degree 5, with 1e-7, costs nothing in
 * one step, but its error has always the same sign at the same place, and a recurrence adds it up.) */
INLINE void exponential(float x, const float k, float *scale, float *rest)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer and leaves that in the low bits */
    const float shifted = x * (k * 1.44269504f) + magic;
    const float r = x - (shifted - magic) * (0.693147181f / k);
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000u;
    memcpy(scale, &bits, sizeof bits);
    const float k2 = k * k, k3 = k2 * k, k4 = k3 * k, k5 = k4 * k, k6 = k5 * k;
    float p = k6 * 0.001394202f;
    p = k5 * 0.00836875942f + r * p;
    p = k4 * 0.0416663885f + r * p;
    p = k3 * 0.166665196f + r * p;
    p = k2 * 0.5f + r * p;
    *rest = r * (k + r * p);
}

/* 1 / sigmoid(x) */
INLINE float inverse_sigmoid(float x, Bounds bounds)
{
    float scale, rest;
    exponential(between(x, bounds.sigmoid), -1.0f, &scale, &rest);
    return 1.0f + (scale * rest + scale);
}

/* exp(2 x) - 1, of which tanh(x) = e / (e + 2) */
INLINE float twice_expm1(float x, Bounds bounds)
{
    float scale, rest;
    exponential(between(x, bounds.tanh), 2.0f, &scale, &rest);
    return scale * rest + (scale - 1.0f);
}

INLINE float tanh_(float x, Bounds bounds)
{
    const float e = twice_expm1(x, bounds);
    return e / (e + 2.0f);
}

INLINE float sigmoid_times_tanh(float x, float y, Bounds bounds)
{
    const float e = twice_expm1(y, bounds);
    return e / (inverse_sigmoid(x, bounds) * (e + 2.0f));
}

/* ---- float32 or bfloat16, the upper half of a float32 ---- */

INLINE float load(const void *data, ptrdiff_t k, const int bfloat16)
{
    if (!bfloat16)
        return ((const float *)data)[k];
    const uint32_t bits = (uint32_t)((const uint16_t *)data)[k] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE void store(void *data, ptrdiff_t k, float value, const int bfloat16)
{
    if (!bfloat16) {
        ((float *)data)[k] = value;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    /* To nearest, ties to even; a NaN must not be rounded to infinity. */
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    ((uint16_t *)data)[k] = (uint16_t)(value != value ? 0x7fc0u : rounded);
}

/* ---- one row, columns begin to end ---- */

enum { MOST_TENSORS = 6 };

typedef struct {
    void *data[MOST_TENSORS];
    ptrdiff_t stride[MOST_TENSORS];
    ptrdiff_t rows, size;
    float clip; /* NaN: none */
} Step;

typedef void Kernel(const Step *, ptrdiff_t row, ptrdiff_t begin, ptrdiff_t end);

INLINE void *row_of(const Step *step, int tensor, ptrdiff_t row, ptrdiff_t item)
{
    return (char *)step->data[tensor] + row * step->stride[tensor] * item;
}

/* gates, cell, squashed */
INLINE void infer_row(const Step *step, ptrdiff_t row, ptrdiff_t begin, ptrdiff_t end, const int bfloat16)
{
    const ptrdiff_t size = step->size, item = bfloat16 ? sizeof(uint16_t) : sizeof(float);
    const char *i = row_of(step, 0, row, item);
    const char *j = i + size * item, *f = j + size * item, *o = f + size * item;
    float *cell = row_of(step, 1, row, sizeof(float));
    void *squashed = row_of(step, 2, row, item);
    const float clip = step->clip;
    const Bounds bounds = read_bounds();
    VECTORIZE
    for (ptrdiff_t k = begin; k < end; k++) {
        const float kept = cell[k] / inverse_sigmoid(load(f, k, bfloat16), bounds);
        const float added = sigmoid_times_tanh(load(i, k, bfloat16), load(j, k, bfloat16), bounds);
        const float c = between(kept + added, clip);
        cell[k] = c;
        store(squashed, k, sigmoid_times_tanh(load(o, k, bfloat16), c, bounds), bfloat16);
    }
}

/* gates, before, cell, squashed */
INLINE void forward_row(const Step *step, ptrdiff_t row, ptrdiff_t begin, ptrdiff_t end)
{
    const ptrdiff_t size = step->size;
    float *i = row_of(step, 0, row, sizeof(float)), *j = i + size, *f = j + size, *o = f + size;
    const float *before = row_of(step, 1, row, sizeof(float));
    float *cell = row_of(step, 2, row, sizeof(float)), *squashed = row_of(step, 3, row, sizeof(float));
    const float clip = step->clip;
    const Bounds bounds = read_bounds();
    VECTORIZE
    for (ptrdiff_t k = begin; k < end; k++) {
        const float si = 1.0f / inverse_sigmoid(i[k], bounds), tj = tanh_(j[k], bounds);
        const float so = 1.0f / inverse_sigmoid(o[k], bounds);
        /* A shut gate (lstm.py) is 0, not the least sigmoid: times that, states and gradients would be subnormal, and
         * the products that read them several times as slow on Intel's processors. */
        const float sf = f[k] < -bounds.sigmoid ? 0.0f : 1.0f / inverse_sigmoid(f[k], bounds);
        const float c = between(before[k] * sf + si * tj, clip);
        i[k] = si;
        j[k] = tj;
        f[k] = sf;
        o[k] = so;
        cell[k] = c;
        squashed[k] = so * tanh_(c, bounds);
    }
}

/* activations, before, cell, d_squashed, d_cell, d_gates */
INLINE void backward_row(const Step *step, ptrdiff_t row, ptrdiff_t begin, ptrdiff_t end)
{
    const ptrdiff_t size = step->size;
    const float *i = row_of(step, 0, row, sizeof(float)), *j = i + size, *f = j + size, *o = f + size;
    const float *before = row_of(step, 1, row, sizeof(float)), *cell = row_of(step, 2, row, sizeof(float));
    const float *d_squashed = row_of(step, 3, row, sizeof(float));
    float *d_cell = row_of(step, 4, row, sizeof(float));
    float *d_i = row_of(step, 5, row, sizeof(float)), *d_j = d_i + size, *d_f = d_j + size, *d_o = d_f + size;
    const float clip = step->clip;
    const Bounds bounds = read_bounds();
    VECTORIZE
    for (ptrdiff_t k = begin; k < end; k++) {
        const float tc = tanh_(cell[k], bounds), d_m = d_squashed[k];
        const float d_c = d_cell[k] + d_m * o[k] * (1.0f - tc * tc);
        /* A cell at its clip passes no gradient. */
        const float passed = fabsf(cell[k]) >= clip ? 0.0f : d_c;
        const float from_o = d_m * tc * o[k] * (1.0f - o[k]);
        const float from_i = passed * j[k] * i[k] * (1.0f - i[k]);
        const float from_j = passed * i[k] * (1.0f - j[k] * j[k]);
        const float from_f = passed * before[k] * f[k] * (1.0f - f[k]);
        d_cell[k] = passed * f[k];
        d_i[k] = from_i;
        d_j[k] = from_j;
        d_f[k] = from_f;
        d_o[k] = from_o;
    }
}

/* ---- all steps of one row: a sentence by itself. There is nothing to share a product's weights with, so what counts
 * is how fast they are read: each thread reads its own part of them, and they wait for each other once a step ---- */

typedef struct Row {
    Step step; /* gates (1, 4H), cell, squashed (1, H), of which each thread works on its own units */
    const float *inputs; /* (steps, 4H): the input's share of the gates, bias included */
    const char *recurrent, *projection; /* (P, 4H), (H, P) or NULL, where P = H; float32, or both bfloat16 */
    float *hidden, *outputs; /* (P), (steps, P) */
    float *partial; /* (2, threads, P): each thread's part of the projection, of even and odd steps */
    ptrdiff_t steps, width, inputs_stride, recurrent_stride, projection_stride, outputs_stride;
    float proj_clip;
    void (*kernel)(struct Row *, ptrdiff_t number, ptrdiff_t threads, float *hidden);
    ptrdiff_t entered, arrived, phase;
} Row;

/* y[c] = base[c] + sum over k of x[k] weight[k, c] */
INLINE void multiply(float *y, const float *base, const float *x, const void *weight, ptrdiff_t stride,
                     ptrdiff_t inner, ptrdiff_t columns, const int bfloat16)
{
    const ptrdiff_t row = stride * (bfloat16 ? sizeof(uint16_t) : sizeof(float));
    const char *a = weight;
    if (base == NULL)
        memset(y, 0, columns * sizeof(float));
    else
        memcpy(y, base, columns * sizeof(float));
    ptrdiff_t k = 0;
    for (; k + 4 <= inner; k += 4, a += 4 * row) {
        const char *b = a + row, *c = b + row, *d = c + row;
        const float p = x[k], q = x[k + 1], r = x[k + 2], s = x[k + 3];
        VECTORIZE
        for (ptrdiff_t m = 0; m < columns; m++)
            y[m] += (p * load(a, m, bfloat16) + q * load(b, m, bfloat16))
                + (r * load(c, m, bfloat16) + s * load(d, m, bfloat16));
    }
    for (; k < inner; k++, a += row) {
        VECTORIZE
        for (ptrdiff_t m = 0; m < columns; m++)
            y[m] += x[k] * load(a, m, bfloat16);
    }
}

/* Wait until all threads have come here. */
static void meet(Row *row, ptrdiff_t threads)
{
    const ptrdiff_t phase = __atomic_load_n(&row->phase, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&row->arrived, 1, __ATOMIC_ACQ_REL) == threads) {
        __atomic_store_n(&row->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&row->phase, phase + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int tries = 0; __atomic_load_n(&row->phase, __ATOMIC_ACQUIRE) == phase; tries++)
        if (tries > 2000)
            sched_yield(); /* another program has the other thread's core */
}

/* What thread number of threads does. hidden: (P), its own copy. */
INLINE void run_steps(Row *row, ptrdiff_t number, ptrdiff_t threads, float *hidden, const int bfloat16)
{
    Step *step = &row->step;
    const ptrdiff_t size = step->size, width = row->width, bytes = width * sizeof(float);
    const ptrdiff_t item = bfloat16 ? sizeof(uint16_t) : sizeof(float);
    /* Whole cache lines to each. */
    const ptrdiff_t first = size * number / threads / 16 * 16;
    const ptrdiff_t last = number + 1 == threads ? size : size * (number + 1) / threads / 16 * 16;
    float *gates = step->data[0], *squashed = step->data[2];
    memcpy(hidden, row->hidden, bytes);
    for (ptrdiff_t t = 0; t < row->steps; t++) {
        const float *inputs = row->inputs + t * row->inputs_stride;
        for (ptrdiff_t gate = 0; gate < 4; gate++) {
            const ptrdiff_t from = gate * size + first;
            multiply(gates + from, inputs + from, hidden, row->recurrent + from * item, row->recurrent_stride, width,
                     last - first, bfloat16);
        }
        infer_row(step, 0, first, last, 0);
        float *partial = row->partial + (t & 1) * threads * width;
        if (row->projection != NULL)
            multiply(partial + number * width, NULL, squashed + first,
                     row->projection + first * row->projection_stride * item, row->projection_stride, last - first,
                     width, bfloat16);
        else
            memcpy(partial + first, squashed + first, (last - first) * sizeof(float));
        if (threads > 1)
            meet(row, threads);
        memcpy(hidden, partial, bytes);
        for (ptrdiff_t other = 1; row->projection != NULL && other < threads; other++)
            for (ptrdiff_t k = 0; k < width; k++)
                hidden[k] += partial[other * width + k];
        for (ptrdiff_t k = 0; k < width; k++)
            hidden[k] = between(hidden[k], row->proj_clip);
        if (number == 0)
            memcpy(row->outputs + t * row->outputs_stride, hidden, bytes);
    }
    if (number == 0)
        memcpy(row->hidden, hidden, bytes);
}

/* ---- the same source for several instruction sets; which one runs is found out on the machine ---- */

typedef void RowKernel(Row *, ptrdiff_t number, ptrdiff_t threads, float *hidden);

typedef struct {
    const char *name;
    Kernel *infer_float32, *infer_bfloat16, *forward, *backward;
    RowKernel *row_float32, *row_bfloat16;
} Kernels;

#define ARGUMENTS const Step *step, ptrdiff_t row, ptrdiff_t begin, ptrdiff_t end
#define ROW_ARGUMENTS Row *row, ptrdiff_t number, ptrdiff_t threads, float *hidden
#define KERNELS(NAME, TARGET) \
    TARGET static void NAME##_infer_float32(ARGUMENTS) { infer_row(step, row, begin, end, 0); } \
    TARGET static void NAME##_infer_bfloat16(ARGUMENTS) { infer_row(step, row, begin, end, 1); } \
    TARGET static void NAME##_forward(ARGUMENTS) { forward_row(step, row, begin, end); } \
    TARGET static void NAME##_backward(ARGUMENTS) { backward_row(step, row, begin, end); } \
    TARGET static void NAME##_row_float32(ROW_ARGUMENTS) { run_steps(row, number, threads, hidden, 0); } \
    TARGET static void NAME##_row_bfloat16(ROW_ARGUMENTS) { run_steps(row, number, threads, hidden, 1); } \
    static const Kernels NAME = {#NAME, NAME##_infer_float32, NAME##_infer_bfloat16, NAME##_forward, NAME##_backward, \
                                 NAME##_row_float32, NAME##_row_bfloat16};

KERNELS(baseline, )
#ifdef __x86_64__
KERNELS(avx2, __attribute__((target("avx2,fma"))))
KERNELS(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))))
#endif

enum { MOST_SETS = 3 };
static const Kernels *available[MOST_SETS]; /* the slowest first */
static int n_available;
static const Kernels *kernels;

static void find_kernels(void)
{
    n_available = 0;
    available[n_available++] = &baseline;
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        available[n_available++] = &avx2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
            && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
            available[n_available++] = &avx512;
    }
#endif
    kernels = available[n_available - 1];
}

/* ---- threads: torch's own, from whichever OpenMP library it has loaded ---- */

/* Linking an OpenMP library would bring a second one where torch's is renamed, as in many of its wheels, and two pools
 * that wait busily for work take each other's cores. This entry point is the same in GNU's and LLVM's. */
typedef void Parallel(void (*function)(void *), void *data, unsigned n_threads, unsigned flags);
static Parallel *parallel;
static pid_t process;

enum {
    ELEMENTS_OF_ONE_THREAD = 16384, /* of a step: with less, a thread is done before it is worth waking */
    BLOCK = 2048, /* columns that a thread takes at once. Rows are cut here for one thread too, so that results do not
                     depend on the number of threads. */
};

typedef struct {
    const Step *step;
    Kernel *kernel;
    ptrdiff_t blocks, blocks_a_row, share, next;
} Job;

static void work(void *data)
{
    Job *job = data;
    for (;;) {
        const ptrdiff_t first = __atomic_fetch_add(&job->next, job->share, __ATOMIC_RELAXED);
        if (first >= job->blocks)
            return;
        const ptrdiff_t last = first + job->share < job->blocks ? first + job->share : job->blocks;
        for (ptrdiff_t block = first; block < last; block++) {
            const ptrdiff_t begin = block % job->blocks_a_row * BLOCK, size = job->step->size;
            const ptrdiff_t end = begin + BLOCK < size ? begin + BLOCK : size;
            job->kernel(job->step, block / job->blocks_a_row, begin, end);
        }
    }
}

static void run(const Step *step, Kernel *kernel, ptrdiff_t threads)
{
    Job job = {.step = step, .kernel = kernel, .blocks_a_row = (step->size + BLOCK - 1) / BLOCK};
    job.blocks = step->rows * job.blocks_a_row;
    const ptrdiff_t useful = step->rows * step->size / ELEMENTS_OF_ONE_THREAD;
    threads = threads < useful ? threads : useful;
    /* A forked child has its parent's pool without its threads: it would wait for them for ever. */
    if (threads < 2 || parallel == NULL || getpid() != process) {
        job.share = job.blocks;
        work(&job);
        return;
    }
    /* Small shares even out what threads lose to other programs. */
    job.share = job.blocks / (threads * 4) + 1;
    parallel(work, &job, (unsigned)threads, 0);
}

static int (*team_size)(void);

static void work_on_row(void *data)
{
    Row *row = data;
    /* The team may be smaller than was asked for. */
    const ptrdiff_t threads = team_size == NULL ? 1 : team_size();
    const ptrdiff_t number = __atomic_fetch_add(&row->entered, 1, __ATOMIC_RELAXED);
    /* omp_get_num_threads may be another OpenMP library's, and count each thread as a team of its own. */
    if (number >= threads)
        return;
    float *hidden = row->partial + (2 * threads + number) * row->width;
    row->kernel(row, number, threads, hidden);
}

enum { WEIGHTS_OF_ONE_THREAD = 32768 };

static void run_alone(Row *row, ptrdiff_t threads)
{
    const ptrdiff_t weights = 5 * row->step.size * row->width;
    if (threads < 2 || weights < WEIGHTS_OF_ONE_THREAD || parallel == NULL || team_size == NULL || getpid() != process)
        row->kernel(row, 0, 1, row->partial + 2 * row->width);
    else
        parallel(work_on_row, row, (unsigned)threads, 0);
}

/* ---- what Python calls: (threads, clip or None, tensors); True, or False where the tensors are not for us ---- */

static PyObject *float32, *bfloat16, *name_is_cpu, *name_dtype, *name_shape, *name_stride, *name_data_ptr;

enum { NOT_OURS = 0, OURS = 1, FAILED = -1 };

/* The two numbers of a tuple of that length. */
static int pair(PyObject *tuple, Py_ssize_t *first, Py_ssize_t *second)
{
    int found = NOT_OURS;
    if (tuple == NULL)
        return FAILED;
    if (PyTuple_Check(tuple) && PyTuple_Size(tuple) == 2) {
        *first = PyLong_AsSsize_t(PyTuple_GetItem(tuple, 0));
        *second = PyLong_AsSsize_t(PyTuple_GetItem(tuple, 1));
        found = PyErr_Occurred() ? FAILED : OURS;
    }
    Py_DECREF(tuple);
    return found;
}

/* Whether an attribute is this very object. */
static int is(PyObject *object, PyObject *name, PyObject *wanted)
{
    PyObject *value = PyObject_GetAttr(object, name);
    if (value == NULL)
        return FAILED;
    const int found = value == wanted ? OURS : NOT_OURS;
    Py_DECREF(value);
    return found;
}

/* Note where a tensor lies, if it is in the CPU's memory, of this dtype and shape, its columns side by side. */
static int place(Step *step, int number, PyObject *tensor, PyObject *dtype, Py_ssize_t blocks)
{
    Py_ssize_t rows, columns, row, column;
    int found;
    if ((found = is(tensor, name_is_cpu, Py_True)) != OURS || (found = is(tensor, name_dtype, dtype)) != OURS
        || (found = pair(PyObject_GetAttr(tensor, name_shape), &rows, &columns)) != OURS
        || (found = pair(PyObject_CallMethodObjArgs(tensor, name_stride, NULL), &row, &column)) != OURS)
        return found;
    if (number == 0) {
        step->rows = rows;
        step->size = columns / blocks;
    }
    if (rows != step->rows || columns != blocks * step->size || column != 1)
        return NOT_OURS;
    PyObject *address = PyObject_CallMethodObjArgs(tensor, name_data_ptr, NULL);
    if (address == NULL)
        return FAILED;
    step->data[number] = PyLong_AsVoidPtr(address);
    step->stride[number] = row;
    Py_DECREF(address);
    return PyErr_Occurred() ? FAILED : OURS;
}

/* blocks: for each tensor, how many times H columns it has, as digits; the first is the gates. */
static PyObject *call(PyObject *const *args, Py_ssize_t n_args, const char *blocks, Kernel *kernel, Kernel *half)
{
    const int tensors = (int)strlen(blocks);
    if (n_args != 2 + tensors)
        return PyErr_Format(PyExc_TypeError, "expected %d arguments, not %zd", 2 + tensors, n_args);
    const Py_ssize_t threads = PyLong_AsSsize_t(args[0]);
    Step step = {.clip = args[1] == Py_None ? NAN : (float)PyFloat_AsDouble(args[1])};
    if (PyErr_Occurred())
        return NULL;
    int low = half == NULL ? NOT_OURS : is(args[2], name_dtype, bfloat16);
    if (low == FAILED)
        return NULL;
    for (int number = 0; number < tensors; number++) {
        /* Of infer's tensors, the first and the third may be bfloat16. */
        PyObject *dtype = low && number != 1 ? bfloat16 : float32;
        const int found = place(&step, number, args[2 + number], dtype, blocks[number] - '0');
        if (found == FAILED)
            return NULL;
        if (found == NOT_OURS)
            Py_RETURN_FALSE;
    }
    Py_BEGIN_ALLOW_THREADS
    run(&step, low ? half : kernel, threads);
    Py_END_ALLOW_THREADS
    Py_RETURN_TRUE;
}

static PyObject *infer(PyObject *module, PyObject *const *args, Py_ssize_t n_args)
{
    return call(args, n_args, "411", kernels->infer_float32, kernels->infer_bfloat16);
}

static PyObject *forward(PyObject *module, PyObject *const *args, Py_ssize_t n_args)
{
    return call(args, n_args, "4111", kernels->forward, NULL);
}

static PyObject *backward(PyObject *module, PyObject *const *args, Py_ssize_t n_args)
{
    return call(args, n_args, "411114", kernels->backward, NULL);
}

/* threads, cell_clip, proj_clip, inputs (steps, 4H), recurrent (P, 4H), projection (H, P) or None, hidden (1, P),
 * cell (1, H), outputs (steps, P) */
static PyObject *run_row(PyObject *module, PyObject *const *args, Py_ssize_t n_args)
{
    enum { INPUTS, RECURRENT, PROJECTION, HIDDEN, CELL, OUTPUTS, OPERANDS, FIRST = 3 };
    if (n_args != FIRST + OPERANDS)
        return PyErr_Format(PyExc_TypeError, "expected %d arguments, not %zd", FIRST + OPERANDS, n_args);
    Py_ssize_t threads = PyLong_AsSsize_t(args[0]), steps = 0, columns = 0, width = 0;
    Row row = {.proj_clip = args[2] == Py_None ? NAN : (float)PyFloat_AsDouble(args[2])};
    row.step.clip = args[1] == Py_None ? NAN : (float)PyFloat_AsDouble(args[1]);
    if (PyErr_Occurred())
        return NULL;
    const int low = is(args[FIRST + RECURRENT], name_dtype, bfloat16);
    int found = low == FAILED ? FAILED : pair(PyObject_GetAttr(args[FIRST + INPUTS], name_shape), &steps, &columns);
    if (found == OURS)
        found = pair(PyObject_GetAttr(args[FIRST + HIDDEN], name_shape), &row.steps, &width);
    const Py_ssize_t size = columns / 4;
    PyObject *of_weights = low ? bfloat16 : float32;
    const struct {
        PyObject *dtype;
        Py_ssize_t rows, columns;
    } wanted[OPERANDS] = {
        {float32, steps, 4 * size}, {of_weights, width, 4 * size}, {of_weights, size, width},
        {float32, 1, width},        {float32, 1, size},            {float32, steps, width},
    };
    Step places[OPERANDS] = {{.rows = 0}};
    for (int n = 0; found == OURS && n < OPERANDS; n++) {
        if (n == PROJECTION && args[FIRST + n] == Py_None) {
            found = width == size ? OURS : NOT_OURS;
            continue;
        }
        found = place(&places[n], 0, args[FIRST + n], wanted[n].dtype, 1);
        if (found == OURS && (places[n].rows != wanted[n].rows || places[n].size != wanted[n].columns))
            found = NOT_OURS;
    }
    if (found == FAILED)
        return NULL;
    if (found == NOT_OURS)
        Py_RETURN_FALSE;
    threads = threads < 1 ? 1 : threads;
    float *scratch = malloc((5 * size + 3 * threads * width) * sizeof(float));
    if (scratch == NULL)
        return PyErr_NoMemory();
    row.kernel = low ? kernels->row_bfloat16 : kernels->row_float32;
    row.inputs = places[INPUTS].data[0], row.inputs_stride = places[INPUTS].stride[0];
    row.recurrent = places[RECURRENT].data[0], row.recurrent_stride = places[RECURRENT].stride[0];
    row.projection = places[PROJECTION].data[0], row.projection_stride = places[PROJECTION].stride[0];
    row.hidden = places[HIDDEN].data[0];
    row.outputs = places[OUTPUTS].data[0], row.outputs_stride = places[OUTPUTS].stride[0];
    row.steps = steps, row.width = width, row.step.rows = 1, row.step.size = size;
    row.step.data[0] = scratch, row.step.data[1] = places[CELL].data[0], row.step.data[2] = scratch + 4 * size;
    row.partial = scratch + 5 * size;
    Py_BEGIN_ALLOW_THREADS
    run_alone(&row, threads);
    Py_END_ALLOW_THREADS
    free(scratch);
    Py_RETURN_TRUE;
}

static PyObject *instruction_sets(PyObject *module, PyObject *unused)
{
    PyObject *names = PyList_New(0);
    for (int number = 0; names != NULL && number < n_available; number++) {
        PyObject *name = PyUnicode_FromString(available[number]->name);
        if (name == NULL || PyList_Append(names, name) < 0)
            Py_CLEAR(names);
        Py_XDECREF(name);
    }
    return names;
}

static PyObject *use(PyObject *module, PyObject *name)
{
    for (int number = 0; number < n_available; number++)
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, available[number]->name) == 0) {
            kernels = available[number];
            Py_RETURN_NONE;
        }
    return PyErr_Format(PyExc_ValueError, "%R is none of instruction_sets()", name);
}

static PyObject *has_threads(PyObject *module, PyObject *unused)
{
    return PyBool_FromLong(parallel != NULL);
}

/* By way of a function without arguments: the cast that PyMethodDef needs is then one that compilers do not doubt. */
#define FAST(FUNCTION) (PyCFunction)(void (*)(void))(FUNCTION), METH_FASTCALL

static PyMethodDef methods[] = {
    {"infer", FAST(infer), "gates (B, 4H), cell, squashed (B, H)"},
    {"forward", FAST(forward), "gates (B, 4H), before, cell, squashed (B, H)"},
    {"backward", FAST(backward), "activations (B, 4H), before, cell, d_squashed, d_cell (B, H), d_gates (B, 4H)"},
    {"run_row", FAST(run_row), "all steps of a single row: see cell.py"},
    {"instruction_sets", instruction_sets, METH_NOARGS, "those of this machine that there is code for, best last"},
    {"use", use, METH_O, "run the code of one of instruction_sets(), for tests and measurements"},
    {"has_threads", has_threads, METH_NOARGS, "whether torch's OpenMP library was found"},
    {NULL, NULL, 0, NULL},
};

static int start(PyObject *module)
{
    PyObject *torch = PyImport_ImportModule("torch");
    if (torch == NULL)
        return -1;
    float32 = PyObject_GetAttrString(torch, "float32");
    bfloat16 = PyObject_GetAttrString(torch, "bfloat16");
    Py_DECREF(torch);
    name_is_cpu = PyUnicode_InternFromString("is_cpu");
    name_dtype = PyUnicode_InternFromString("dtype");
    name_shape = PyUnicode_InternFromString("shape");
    name_stride = PyUnicode_InternFromString("stride");
    name_data_ptr = PyUnicode_InternFromString("data_ptr");
    if (PyErr_Occurred())
        return -1;
    find_kernels();
    /* torch loads its dependencies for all to see. */
    parallel = (Parallel *)dlsym(RTLD_DEFAULT, "GOMP_parallel");
    team_size = (int (*)(void))dlsym(RTLD_DEFAULT, "omp_get_num_threads");
    process = getpid();
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)start},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_cell", .m_size = 0, .m_methods = methods, .m_slots = slots,
};

PyMODINIT_FUNC PyInit__cell(void)
{
    return PyModuleDef_Init(&definition);
}
