package stelae.spark;

import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Optional;
import java.util.PrimitiveIterator;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.column.page.PageReadStore;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.ExperimentalMethods;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.BitwiseNot;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.Count;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.parser.ParserInterface;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.util.CaseInsensitiveMap$;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.execution.datasources.FileIndex;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation$;
import org.apache.spark.sql.execution.datasources.PartitionDirectory$;
import org.apache.spark.sql.execution.datasources.PartitionedFile;
import org.apache.spark.sql.execution.datasources.RecordReaderIterator;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.execution.datasources.parquet.ParquetRowIndexUtil.RowIndexGenerator;
import org.apache.spark.sql.execution.datasources.parquet.VectorizedParquetRecordReader;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.DataType$;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import scala.Function1;
import scala.Option;
import scala.collection.AbstractIterator;
import scala.collection.Iterator;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction1;
import scala.runtime.AbstractPartialFunction;

/**
 * Spark's reader of Parquet, but for the places of rows: where a row is to be seen, it says -1 in place of one. So a
 * filter that keeps just those compares a number with a constant; it neither counts rows nor looks at bits.
 *
 * Compiled when it is needed by the compiler that Spark brings, which knows no generics and no lambdas.
 */
public final class HidingFormat extends ParquetFileFormat {
    private static final String NO_PLACES = "this Spark does not tell the places of rows in files";

    private final String identity;
    private final HashMap starts;
    private final Broadcast bits;
    private final long seen;

    HidingFormat(String identity, HashMap starts, Broadcast bits, long seen) {
        this.identity = identity;
        this.starts = starts;
        this.bits = bits;
        this.seen = seen;
    }

    /** Makes frames that hide records of their files. */
    public static final class Frames {
        /** Fails if Spark's reader is not one that this is for. */
        public void check() {
            fieldOf(RecordReaderIterator.class, "rowReader");
            fieldOf(VectorizedParquetRecordReader.class, "rowIndexGenerator");
            fieldOf(RowIndexGenerator.class, "rowIndexColumnIdx");
        }

        /**
         * Gives Spark a plan that it analyses once, of files that nobody looks for before they are read.
         *
         * @param schema of the files, as Spark's JSON; among its columns are the places of rows
         * @param paths of the files: an array, in JSON as all that are here
         * @param numbers of each file: its bytes, and how many words of eight bytes it has of the bits; eight bytes each,
         *     the lowest first
         * @param bits of all files behind each other: bit i of byte i/8, least first, hides the i-th record
         * @param identity stands for all that is hidden: two formats that hide the same are equal
         * @param seen how many records of all files are not hidden
         * @param options of the reader: names and values by turns
         * @param steps what is done then: "where" and a condition, or "select" and columns, in SQL
         */
        public Object of(
                org.apache.spark.sql.classic.SparkSession session,
                String schema,
                String paths,
                byte[] numbers,
                byte[] bits,
                String identity,
                long seen,
                String options,
                String steps) throws IOException, ParseException {
            Counting.install(session.experimental());
            ObjectMapper json = new ObjectMapper();
            String[] names = (String[]) json.readValue(paths, String[].class);
            ByteBuffer counts = ByteBuffer.wrap(numbers);
            counts.order(ByteOrder.LITTLE_ENDIAN);
            FileStatus[] files = new FileStatus[names.length];
            HashMap starts = new HashMap();
            int start = 0;
            for (int i = 0; i < names.length; i++) {
                Path path = new Path(names[i]);
                files[i] = new FileStatus(counts.getLong(16 * i), false, 1, 0L, 0L, path);
                int stop = start + (int) counts.getLong(16 * i + 8);
                starts.put(path.getName(), new int[] {start, stop});
                start = stop;
            }
            Broadcast sent = JavaSparkContext.fromSparkContext(session.sparkContext()).broadcast(bits);
            HadoopFsRelation hiding = new HadoopFsRelation(
                new Files(files),
                new StructType(new StructField[0]),
                ((StructType) DataType$.MODULE$.fromJson(schema)).asNullable(),
                Option.empty(),
                new HidingFormat(identity, starts, sent, seen),
                options((String[]) json.readValue(options, String[].class)),
                session);
            LogicalPlan plan = LogicalRelation$.MODULE$.apply(hiding, false);
            String[][] done = (String[][]) json.readValue(steps, String[][].class);
            for (int i = 0; i < done.length; i++) {
                plan = after(plan, done[i], session.sessionState().sqlParser());
            }
            return Dataset$.MODULE$.ofRows(session, plan);
        }

        private static Map options(String[] said) {
            Map options = scala.collection.immutable.Map$.MODULE$.empty();
            for (int i = 0; i < said.length; i += 2) {
                options = (Map) options.updated(said[i], said[i + 1]);
            }
            return CaseInsensitiveMap$.MODULE$.apply(options);
        }

        private static LogicalPlan after(LogicalPlan plan, String[] step, ParserInterface parser)
                throws ParseException {
            if (step[0].equals("where")) {
                return new Filter(parser.parseExpression(step[1]), plan);
            }
            Seq columns = (Seq) Nil$.MODULE$;
            for (int i = 1; i < step.length; i++) {
                columns = (Seq) columns.appended(column(step[i], parser));
            }
            return new Project(columns, plan);
        }

        /** Most are nothing but names, which need no parser. */
        private static Expression column(String said, ParserInterface parser) throws ParseException {
            int last = said.length() - 1;
            if (said.charAt(0) == '`' && said.indexOf('`', 1) == last) {
                return new UnresolvedAttribute((Seq) Nil$.MODULE$.appended(said.substring(1, last)));
            }
            return parser.parseExpression(said);
        }
    }

    /** Files of which all is known that Spark wants to know before it reads them. */
    public static final class Files implements FileIndex {
        private final FileStatus[] files;

        Files(FileStatus[] files) {
            this.files = files;
        }

        public Seq rootPaths() {
            Seq paths = (Seq) Nil$.MODULE$;
            for (int i = this.files.length - 1; i >= 0; i--) {
                paths = (Seq) paths.prepended(this.files[i].getPath());
            }
            return paths;
        }

        public Seq listFiles(Seq ofPartitions, Seq ofData) {
            InternalRow none = new GenericInternalRow(new Object[0]);
            return (Seq) Nil$.MODULE$.appended(PartitionDirectory$.MODULE$.apply(none, this.files));
        }

        public String[] inputFiles() {
            String[] names = new String[this.files.length];
            for (int i = 0; i < names.length; i++) {
                names[i] = this.files[i].getPath().toUri().toString();
            }
            return names;
        }

        public void refresh() {
        }

        public long sizeInBytes() {
            long all = 0L;
            for (int i = 0; i < this.files.length; i++) {
                all += this.files[i].getLen();
            }
            return all;
        }

        public StructType partitionSchema() {
            return new StructType(new StructField[0]);
        }

        public Option metadataOpsTimeNs() {
            return Option.empty();
        }

        /** A file is never changed, so its path says all. */
        public boolean equals(Object other) {
            return other instanceof Files && Arrays.equals(((Files) other).files, this.files);
        }

        public int hashCode() {
            return Arrays.hashCode(this.files);
        }
    }

    public boolean equals(Object other) {
        return other instanceof HidingFormat && ((HidingFormat) other).identity.equals(this.identity);
    }

    public int hashCode() {
        return this.identity.hashCode();
    }

    public Function1 buildReaderWithPartitionValues(
            SparkSession session,
            StructType data,
            StructType partition,
            StructType required,
            Seq filters,
            Map options,
            Configuration hadoop) {
        Function1 reader =
            super.buildReaderWithPartitionValues(session, data, partition, required, filters, options, hadoop);
        String place = ParquetFileFormat.ROW_INDEX_TEMPORARY_COLUMN_NAME();
        if (!required.getFieldIndex(place).isDefined()) {
            throw new IllegalStateException(NO_PLACES);
        }
        return new Reader(reader, required.fieldIndex(place), this.starts, this.bits);
    }

    /** Opens a file, and sees to it that flags are told of its rows. */
    public static final class Reader extends AbstractFunction1 implements Serializable {
        private final Function1 reader;
        private final int column;
        private final HashMap starts;
        private final Broadcast bits;

        Reader(Function1 reader, int column, HashMap starts, Broadcast bits) {
            this.reader = reader;
            this.column = column;
            this.starts = starts;
            this.bits = bits;
        }

        public Object apply(Object file) {
            String name = ((PartitionedFile) file).toPath().getName();
            int[] range = (int[]) this.starts.get(name);
            if (range == null) {
                throw new IllegalStateException("it is not known which records are hidden of " + name);
            }
            byte[] all = (byte[]) this.bits.value();
            Hidden hidden = new Hidden(all, range[0], range[1]);
            Object rows = this.reader.apply(file);
            if (rows instanceof RecordReaderIterator) {
                Object reader = valueOf(RecordReaderIterator.class, "rowReader", rows);
                if (reader instanceof VectorizedParquetRecordReader) {
                    setFlags((VectorizedParquetRecordReader) reader, hidden);
                    return rows;
                }
            }
            return new Rows((Iterator) rows, this.column, hidden);
        }

        private static void setFlags(VectorizedParquetRecordReader reader, Hidden hidden) {
            Field field = fieldOf(VectorizedParquetRecordReader.class, "rowIndexGenerator");
            try {
                Object before = field.get(reader);
                if (before == null) {
                    throw new IllegalStateException(NO_PLACES);
                }
                Object column = valueOf(RowIndexGenerator.class, "rowIndexColumnIdx", before);
                field.set(reader, new Flags(((Integer) column).intValue(), hidden));
            } catch (IllegalAccessException error) {
                throw new IllegalStateException(error);
            }
        }
    }

    private static Field fieldOf(Class class_, String name) {
        try {
            Field field = class_.getDeclaredField(name);
            field.setAccessible(true);
            return field;
        } catch (NoSuchFieldException error) {
            throw new IllegalStateException("this Spark's reader of Parquet is another than is known", error);
        }
    }

    private static Object valueOf(Class class_, String name, Object object) {
        try {
            return fieldOf(class_, name).get(object);
        } catch (IllegalAccessException error) {
            throw new IllegalStateException(error);
        }
    }

    /** Which records of one file are hidden. */
    static final class Hidden {
        private final ByteBuffer bits;
        private final int start;
        private final long count;

        /** `start` and `stop`: of its part of the bits, in words. */
        Hidden(byte[] bits, int start, int stop) {
            this.bits = ByteBuffer.wrap(bits);
            this.bits.order(ByteOrder.LITTLE_ENDIAN);
            this.start = start;
            this.count = (stop - start) * 64L;
        }

        private long word(long number) {
            return this.bits.getLong((this.start + (int) number) * 8);
        }

        boolean has(long place) {
            check(place + 1);
            return (word(place >>> 6) >>> (int) (place & 63L) & 1L) != 0L;
        }

        /** So many rows from a place are seen, but for those that are hidden, whose places are told. */
        void tell(long first, int count, WritableColumnVector flags) {
            check(first + count);
            flags.putLongs(0, count, -1L);
            long stop = first + count;
            for (long word = first >>> 6; word << 6 < stop; word++) {
                long left = word(word);
                while (left != 0L) {
                    long place = (word << 6) + Long.numberOfTrailingZeros(left);
                    if (place >= first && place < stop) {
                        flags.putLong((int) (place - first), place);
                    }
                    left &= left - 1L;
                }
            }
        }

        private void check(long stop) {
            if (stop > this.count) {
                throw new IllegalStateException("a file has more records than its reference says");
            }
        }
    }

    /** Takes the place of what counts rows in Spark's vectorized reader. */
    static final class Flags extends RowIndexGenerator {
        private final Hidden hidden;
        private long next;
        private PrimitiveIterator.OfLong chosen;

        Flags(int column, Hidden hidden) {
            super(column);
            this.hidden = hidden;
        }

        public void initFromPageReadStore(PageReadStore pages) {
            if (!pages.getRowIndexOffset().isPresent()) {
                throw new UncheckedIOException(new IOException("Parquet does not tell where a row group begins"));
            }
            Object first = pages.getRowIndexOffset().get();
            this.next = ((Long) first).longValue();
            Optional indexes = pages.getRowIndexes();
            Object some = indexes.isPresent() ? indexes.get() : null;
            this.chosen = (PrimitiveIterator.OfLong) some;
        }

        public void populateRowIndex(WritableColumnVector flags, int count) {
            if (this.chosen == null) {
                this.hidden.tell(this.next, count, flags);
                this.next += count;
                return;
            }
            for (int i = 0; i < count; i++) {
                long place = this.next + this.chosen.nextLong();
                flags.putLong(i, this.hidden.has(place) ? place : -1L);
            }
        }
    }

    /** Where rows come one by one: each with its place, which is exchanged. */
    static final class Rows extends AbstractIterator implements java.io.Closeable {
        private final Iterator rows;
        private final int column;
        private final Hidden hidden;

        Rows(Iterator rows, int column, Hidden hidden) {
            this.rows = rows;
            this.column = column;
            this.hidden = hidden;
        }

        public boolean hasNext() {
            return this.rows.hasNext();
        }

        public Object next() {
            UnsafeRow row = (UnsafeRow) this.rows.next();
            if (row.isNullAt(this.column)) {
                throw new IllegalStateException(NO_PLACES);
            }
            long place = row.getLong(this.column);
            row.setLong(this.column, this.hidden.has(place) ? place : -1L);
            return row;
        }

        public void close() throws IOException {
            if (this.rows instanceof java.io.Closeable) {
                ((java.io.Closeable) this.rows).close();
            }
        }
    }

    /** Answers counts of all rows that are seen from what is known of the files, and reads none of them. */
    static final class Counting extends Rule {
        static synchronized void install(ExperimentalMethods methods) {
            Iterator there = methods.extraOptimizations().iterator();
            while (there.hasNext()) {
                if (there.next() instanceof Counting) {
                    return;
                }
            }
            methods.extraOptimizations_$eq((Seq) methods.extraOptimizations().appended(new Counting()));
        }

        public TreeNode apply(TreeNode plan) {
            return plan.transformDown(new Counts());
        }
    }

    /** What takes the place of a node that counts. */
    static final class Counts extends AbstractPartialFunction implements Serializable {
        public boolean isDefinedAt(Object node) {
            return answer(node) != null;
        }

        public Object applyOrElse(Object node, Function1 otherwise) {
            Object found = answer(node);
            return found == null ? otherwise.apply(node) : found;
        }

        private static Object answer(Object node) {
            if (!(node instanceof Aggregate) || !((Aggregate) node).groupingExpressions().isEmpty()) {
                return null;
            }
            Aggregate counting = (Aggregate) node;
            Iterator wanted = counting.aggregateExpressions().iterator();
            while (wanted.hasNext()) {
                if (!countsRows(wanted.next())) {
                    return null;
                }
            }
            long rows = rowsOf(counting.child());
            if (rows < 0) {
                return null;
            }
            Object[] values = new Object[counting.aggregateExpressions().size()];
            for (int i = 0; i < values.length; i++) {
                values[i] = Long.valueOf(rows);
            }
            Seq row = (Seq) Nil$.MODULE$.appended(new GenericInternalRow(values));
            return new LocalRelation(counting.output(), row, false, Option.empty());
        }

        /** Whether this is count(*), or the count of a constant. */
        private static boolean countsRows(Object named) {
            if (!(named instanceof Alias) || !(((Alias) named).child() instanceof AggregateExpression)) {
                return false;
            }
            AggregateExpression each = (AggregateExpression) ((Alias) named).child();
            if (each.isDistinct() || each.filter().isDefined() || !(each.aggregateFunction() instanceof Count)) {
                return false;
            }
            Iterator of = ((Count) each.aggregateFunction()).children().iterator();
            while (of.hasNext()) {
                Object child = of.next();
                if (!(child instanceof Literal) || ((Literal) child).value() == null) {
                    return false;
                }
            }
            return true;
        }

        /** How many rows a plan has that is nothing but the rows of files that are seen; else -1. */
        private static long rowsOf(LogicalPlan plan) {
            LogicalPlan at = plan;
            while (at instanceof Project) {
                at = ((Project) at).child();
            }
            if (!(at instanceof Filter) || !keepsSeen(((Filter) at).condition())) {
                return -1L;
            }
            at = ((Filter) at).child();
            while (at instanceof Project) {
                at = ((Project) at).child();
            }
            if (!(at instanceof LogicalRelation) || !(((LogicalRelation) at).relation() instanceof HadoopFsRelation)) {
                return -1L;
            }
            Object format = ((HadoopFsRelation) ((LogicalRelation) at).relation()).fileFormat();
            return format instanceof HidingFormat ? ((HidingFormat) format).seen : -1L;
        }

        /** Whether a condition is that a row is seen, and nothing else. */
        private static boolean keepsSeen(Object condition) {
            if (condition instanceof And) {
                return keepsSeen(((And) condition).left()) && keepsSeen(((And) condition).right());
            }
            if (condition instanceof IsNotNull) {
                return isPlace(((IsNotNull) condition).child());
            }
            if (!(condition instanceof EqualTo) || !(((EqualTo) condition).left() instanceof BitwiseNot)) {
                return false;
            }
            Object right = ((EqualTo) condition).right();
            return isPlace(((BitwiseNot) ((EqualTo) condition).left()).child())
                && right instanceof Literal
                && Long.valueOf(0L).equals(((Literal) right).value());
        }

        private static boolean isPlace(Object expression) {
            return expression instanceof AttributeReference
                && ((AttributeReference) expression).name().equals(ParquetFileFormat.ROW_INDEX_TEMPORARY_COLUMN_NAME());
        }
    }
}
